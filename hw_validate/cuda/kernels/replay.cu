// Runs a lowered Program: a persistent kernel in which a CTA is an SM, and a few warps of it are a lane.
//
// Ranks are ranges of CTAs of one cooperative grid, or a grid on each of several GPUs that can reach each other's memory;
// which memory "another GPU" is, the tables of pointers say. lower.py writes the tables and reads the records; its dtypes
// and the structs here are the same.
//
//     lane      one warp, or several for lanes that store or load. Its first thread, the leader, does everything but moving
//               bytes: it claims tasks, spins, waits, signals, and notes the clock before and after each op.
//     courier   the last warp of each CTA. It publishes what must wait for earlier stores (counters bumped by a STORE,
//               signals to other GPUs) and what arrives (loads), so that no lane stands still for a release.
//     clock     ticks of the SM since the start edge, which all CTAs of a GPU saw on the global timer; the same edge and one
//               at the end give the rate.
//     records   kept in shared memory; those that do not fit are written at once and counted. Flushed at the end.
//
// Between the two times of an op lies that op and nothing else. So: what it needs is in registers or shared memory before
// (the loads of `part_of` are waited for before the first time is noted); no look at the abort word, which is a load from
// far away, but in waits; no release towards another GPU, which would wait for the lane's own stores, but by the courier.
#include "device.cuh"

using namespace xstage;

namespace {

enum Kind : u32 { COMPUTE, STORE, LOAD, SIGNAL, WAIT, ACQUIRE, RELEASE };
enum OpFlag : u32 { SYSTEM_WIDE = 1, ADDS = 4 };

constexpr u32 NONE = 0xffffffffu, BROKEN = 0xfffffffeu;
constexpr u32 COUNTER_WORDS = 8;  // counters lie in sectors of their own
constexpr u32 WINDOW_OPS = 32, MOST_LANES = 15, MAIL_SLOTS = 32, MOST_LOADS = 16;
constexpr u32 MOST_THREADS = 768;

struct Op {
  u8 kind, flags;
  u16 n_shares;
  i32 counter;
  u32 count;   // STORE: stride of its counters by GPU
  u32 target;  // STORE: first share; LOAD: owner
  u32 bytes;
  u32 home;    // GPU of the counter
  u64 ticks;
};

struct Share {
  u32 gpu, bytes;
};

struct Entry {  // a task in its queue
  u32 task, first_run;
  i32 guard_counter[2];
  u32 guard_count[2];
  u32 guard_is_system_wide, padding;
};

struct Run {
  u32 first_op, n_ops;
};

struct Queue {
  u32 first, n_entries, is_shared, cursor;
};

struct Step {
  i32 queue, otherwise;
  u32 times, padding;
};

struct Group {
  u32 gpu, first_step, n_prefix, n_repeat, ahead, n_lanes, n_slots, first_word, is_in_shared, first_taken;
};

struct Lane {
  u32 number, group, seat, window, first_warp, n_warps;
  u64 store_first, load_first, start_ticks;
};

struct Cta {
  u32 gpu, first_lane, n_lanes, first_word, n_words, log_records;
};

struct Record {
  u32 lane, task, op, start, end;  // ticks since the start edge
};

struct Times {
  u64 global_start, clock_start, global_end, clock_end;
  u32 sm, status, spilled, padding;
};

struct Parameters {
  const Op* ops;
  const Share* shares;
  const Entry* entries;
  const Run* runs;
  const Queue* queues;
  const Step* steps;
  const Group* groups;
  const Lane* lanes;
  const Cta* ctas;
  u32* const* counters;        // by GPU
  u8* const* landing;          // by GPU: where stores of others to it land
  u8* const* own_landing;      // by GPU: where its stores to itself land
  const u8* const* source;     // by GPU: what others load from it
  const u8* const* own_source;  // by GPU: what it loads from itself
  u32* cursors;                // of shared queues of this GPU
  u32* taken;                  // lists of entries taken, by group
  u32* group_words;            // initial state of groups; those that span CTAs live here
  Record* records;
  u32* n_records;
  Times* times;
  u32* barrier;                // of all CTAs of all GPUs
  u64* start_edge;             // on the global timer of this GPU
  u32* abort;
  u64 patience;                // ticks
  u64 lead_ns;
  u64 store_slice, load_slice;  // bytes of a lane in each buffer that it stores to or loads from
  u32 first_cta, n_ctas, granule_bytes, data_seed, compute_overhead, store_width;
  u32 ops_bytes, shares_bytes, entries_bytes, runs_bytes;
};

static_assert(sizeof(Op) == 32 && sizeof(Entry) == 32 && sizeof(Group) == 40 && sizeof(Lane) == 48, "as in lower.py");
static_assert(sizeof(Record) == 20 && sizeof(Times) == 48 && sizeof(Parameters) == 256, "as in replay_job.py");

// --- shared memory of a CTA: the start edge, for each lane a block, then the state of its groups, then the records of each lane

struct Mail {
  u32* counter;
  u32 amount, is_system_wide;
};

struct alignas(16) LaneBlock {
  Op ops[2][WINDOW_OPS];
  Mail mail[MAIL_SLOTS], loads[MOST_LOADS];
  MBarrier arrived[MOST_LOADS];
  u32 mail_written, mail_read, loads_written, loads_read, is_closed, entry, is_broken, n_logged;
};

static_assert(sizeof(LaneBlock) == 2976 && sizeof(Edge) == 16, "as in lower.py");

// What a thread knows of its lane. What ops need stands here by value: in registers, not a load away.
struct Self {
  const Parameters& p;
  const Lane& lane;
  const Group& group;
  LaneBlock& block;
  u32* words;  // of the group
  u32* own_counters;
  Record* log;
  u8* load_target;
  Watch watch;
  u64 start;
  u32 number, gpu, slot, thread, n_threads, log_records;
  bool is_group_in_shared;
  u64 stored, loaded;  // bytes since the start of this lane's slice
  u32 n_stores;

  XSTAGE_DEVICE bool is_leader() const { return thread == 0; }
  XSTAGE_DEVICE u32* counter(u32 home, i32 number) const {
    return (home == gpu ? own_counters : p.counters[home]) + static_cast<u64>(number) * COUNTER_WORDS;
  }

  XSTAGE_DEVICE void meet() const {
    if (n_threads == WARP)
      sync_warp();
    else
      sync_named(1 + slot, n_threads);
  }
};

// Words of a group lie in shared memory if the whole group is in this CTA.
XSTAGE_DEVICE u32 group_load(const Self& self, const u32* word) {
  return self.is_group_in_shared ? load_acquire<xstage::CTA>(word) : load_acquire<GPU>(word);
}
XSTAGE_DEVICE void group_add(const Self& self, u32* word, u32 amount) {
  if (self.is_group_in_shared)
    add_release<xstage::CTA>(word, amount);
  else
    add_release<GPU>(word, amount);
}
XSTAGE_DEVICE u32 group_swap(const Self& self, u32* word, u32 expected, u32 value) {
  return self.is_group_in_shared ? compare_swap<xstage::CTA>(word, expected, value)
                                 : compare_swap<GPU>(word, expected, value);
}

enum GroupWord : u32 { LOCK, N_TAKEN, STEP, VISITS, FINISHED };  // then slots, then cursors of private queues

// --- claiming tasks: the rules of the simulator, by whichever lane of a group comes first

struct Missing {
  const u32* word;
  u32 needed;
};

XSTAGE_DEVICE bool guards_hold(const Self& self, const Entry& entry, Missing& missing) {
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    if (entry.guard_counter[i] < 0) continue;
    const u32* word = self.counter(self.gpu, entry.guard_counter[i]);
    u32 value = entry.guard_is_system_wide ? load_acquire<SYSTEM>(word) : load_acquire<GPU>(word);
#ifndef XSTAGE_FAULT_NO_GUARDS
    if (!reached(value, entry.guard_count[i])) {
      missing = Missing{word, entry.guard_count[i]};
      return false;
    }
#endif
  }
  return true;
}

XSTAGE_DEVICE u32* cursor_of(const Self& self, const Queue& queue) {
  if (queue.is_shared) return self.p.cursors + queue.cursor;
  return self.words + FINISHED + self.group.n_lanes + self.group.n_slots + queue.cursor;
}

XSTAGE_DEVICE u32 head_of(const Self& self, const Queue& queue) {
  const u32* cursor = cursor_of(self, queue);
  return queue.is_shared ? load_acquire<GPU>(cursor) : group_load(self, cursor);
}

XSTAGE_DEVICE bool is_open(const Self& self, i32 number) {
  return number >= 0 && head_of(self, self.p.queues[number]) < self.p.queues[number].n_entries;
}

// Claim the next entry for the group, whose lock is held. BROKEN: not now, `missing` says why. NONE: nothing is left.
XSTAGE_DEVICE u32 take(const Self& self, u32 n_taken, Missing& missing) {
  const Group& group = self.group;
  u32 step = group_load(self, self.words + STEP), visits = group_load(self, self.words + VISITS), skipped = 0;
  u32 first = step, result = BROKEN;
  Step at{};
  for (;;) {
    if (step == group.n_prefix + group.n_repeat) step = group.n_prefix;
    if (step >= group.n_prefix && skipped >= group.n_repeat) return NONE;
    at = self.p.steps[group.first_step + step];
    if (is_open(self, at.queue) || is_open(self, at.otherwise)) break;
    skipped += step >= group.n_prefix;
    ++step;
    visits = 0;
  }
  u32 slowest = NONE;
  for (u32 seat = 0; seat < group.n_lanes; ++seat) {
    u32 finished = group_load(self, self.words + FINISHED + seat);
    if (finished < slowest) slowest = finished;
  }
  if (n_taken - slowest > group.ahead) {
    missing = Missing{self.words + FINISHED, n_taken - group.ahead};
    return BROKEN;
  }
  for (u32 choice = 0; choice < 2 && result == BROKEN; ++choice) {
    i32 number = choice == 0 ? at.queue : at.otherwise;
    if (number < 0) continue;
    const Queue& queue = self.p.queues[number];
    u32* cursor = cursor_of(self, queue);
    for (u32 head = head_of(self, queue); head < queue.n_entries;) {
      u32 index = queue.first + head;
      if (!guards_hold(self, self.p.entries[index], missing)) break;
      if (!queue.is_shared) {
        group_add(self, cursor, 1);
        result = index;
        break;
      }
      u32 before = compare_swap<GPU>(cursor, head, head + 1);
      if (before == head) {
        result = index;
        break;
      }
      head = before;
    }
  }
  if (result != BROKEN) {
    ++visits;
    if (at.times != 0 && visits >= at.times) {
      ++step;
      visits = 0;
    }
  }
  group_add(self, self.words + STEP, step - first);
  group_add(self, self.words + VISITS, visits - group_load(self, self.words + VISITS));
  return result;
}

// The entry that this lane runs after `begun` others. NONE: no more. BROKEN: given up.
XSTAGE_DEVICE u32 next_entry(const Self& self, u32 begun) {
  u32* taken = self.p.taken + self.group.first_taken;
  Missing missing{self.words + N_TAKEN, begun + 1};
  Spin spin(self.watch);
  for (;;) {
    if (group_load(self, self.words + N_TAKEN) > begun) return taken[begun];
    if (group_swap(self, self.words + LOCK, 0, 1) == 0) {
      u32 result = BROKEN;
      bool others_took = group_load(self, self.words + N_TAKEN) > begun;
      if (!others_took) {
        result = take(self, begun, missing);
        if (result < BROKEN) {
          if (self.group.n_lanes > 1) taken[begun] = result;  // for those who follow
          group_add(self, self.words + N_TAKEN, 1);
        }
      }
      group_add(self, self.words + LOCK, NONE);  // from 1 to 0
      if (result != BROKEN) return result;
      if (others_took) continue;
    }
    if (!spin.again(missing.word, missing.needed)) return BROKEN;
  }
}

// --- moving bytes: all threads of a lane

// One GPU's part of a store, as the lanes of a warp hold one each: its bytes, and where this lane's slice is over there.
struct Part {
  u32 bytes;
  u8* slice;
};

XSTAGE_DEVICE Part part_of(const Self& self, const Op& op) {
  if (op.kind != STORE || lane_index() >= op.n_shares) return Part{0, nullptr};
  Share share = self.p.shares[op.target + lane_index()];
  u8* landing = (share.gpu == self.gpu ? self.p.own_landing : self.p.landing)[share.gpu];
  return Part{share.bytes, landing + self.lane.store_first};
}

XSTAGE_DEVICE Part part_of_lane(const Part& mine, u32 lane) {
  u64 slice = shuffle(static_cast<u64>(reinterpret_cast<size_t>(mine.slice)), lane);
  return Part{shuffle(mine.bytes, lane), reinterpret_cast<u8*>(static_cast<size_t>(slice))};
}

XSTAGE_DEVICE Vector16 payload(u32 number, u32 n_stores, u32 seed, u32 position) {
  if (seed == 0) return Vector16{0, 0, 0, 0};
  return Vector16{number, n_stores, position, seed ^ position * 0x9e3779b9u};
}

// `bytes` to a slice, from 16-byte unit `position` of the op on.
XSTAGE_DEVICE void store_piece(Self& self, u8* slice, u32 bytes, u32 position, bool adds) {
  if (self.stored + bytes > self.p.store_slice) self.stored = 0;
  const u32 number = self.number, nth = self.n_stores, seed = self.p.data_seed;
  u8* target = slice + self.stored;
  u32 width = adds ? 16 : self.p.store_width, step = self.n_threads * width, at = self.thread * width;
  if (adds) {
    for (; at < bytes; at += step) remote_add16(target + at, Vector16{});
  } else if (width == 32) {
#pragma unroll 4
    for (; at + 16 < bytes; at += step) {
      u32 unit = position + at / 16;
      remote_store32(target + at, payload(number, nth, seed, unit), payload(number, nth, seed, unit + 1));
    }
    if (at < bytes) remote_store16(target + at, payload(number, nth, seed, position + at / 16));
  } else {
#pragma unroll 8
    for (; at < bytes; at += step) remote_store16(target + at, payload(number, nth, seed, position + at / 16));
  }
  self.stored += (bytes + self.p.store_width - 1) / self.p.store_width * self.p.store_width;
}

XSTAGE_DEVICE void store(Self& self, u32 n_parts, const Part& mine, bool adds) {
  if (n_parts == 1) {
    Part part = part_of_lane(mine, 0);
    store_piece(self, part.slice, part.bytes, 0, adds);
  } else {
    u32 position = 0, granule = self.p.granule_bytes;
    for (u32 dealt = 0; any_lane(mine.bytes > dealt); dealt += granule)
      for (u32 i = 0; i < n_parts; ++i) {
        Part part = part_of_lane(mine, i);
        if (part.bytes <= dealt) continue;
        u32 size = part.bytes - dealt < granule ? part.bytes - dealt : granule;
        store_piece(self, part.slice, size, position, adds);
        position += size / 16;
      }
  }
  ++self.n_stores;
}

XSTAGE_DEVICE void load(Self& self, const Op& op) {
  if (self.loaded + op.bytes > self.p.load_slice) self.loaded = 0;
  const u8* source = (op.target == self.gpu ? self.p.own_source : self.p.source)[op.target];
  source += self.lane.load_first + self.loaded;
  for (u32 at = self.thread * 16; at < op.bytes; at += self.n_threads * 16) cp_async16(self.load_target, source + at);
  self.loaded += op.bytes;
}

// --- the courier's post: lanes write, one thread of the courier for each lane and kind reads

XSTAGE_DEVICE bool post(const Self& self, Mail* slots, u32 n_slots, u32* written, const u32* read, Mail mail) {
  u32 place = load_relaxed<xstage::CTA>(written);
  if (place - load_acquire<xstage::CTA>(read) >= n_slots) {
    Spin spin(self.watch);
    while (place - load_acquire<xstage::CTA>(read) >= n_slots)
      if (!spin.again(read, place + 1 - n_slots)) return false;
  }
  slots[place % n_slots] = mail;
  store_release<xstage::CTA>(written, place + 1);
  return true;
}

XSTAGE_DEVICE bool publish(const Self& self, u32* counter, u32 amount, bool is_system_wide) {
  LaneBlock& block = self.block;
  return post(self, block.mail, MAIL_SLOTS, &block.mail_written, &block.mail_read, Mail{counter, amount, is_system_wide});
}

XSTAGE_DEVICE void bump(const Mail& mail) {
  if (!mail.counter) return;
  if (mail.is_system_wide)
    signal_release<SYSTEM>(mail.counter, mail.amount);
  else
    signal_release<GPU>(mail.counter, mail.amount);
}

// The courier, a whole warp: two threads for each lane, for its mail and its loads, until all lanes are closed and all post is
// delivered. They go round together and none of them waits alone, so that no thread holds up another.
XSTAGE_DEVICE void deliver(LaneBlock* blocks, const Lane* lanes, u32 n_lanes, u32* abort) {
  const bool loads = lane_index() % 2 != 0;
  const u32 lane = lane_index() / 2;
  const u32 window = lane < n_lanes ? lanes[lane].window : 0;
  bool is_open = lane < n_lanes && (!loads || window != 0);
  LaneBlock& block = blocks[is_open ? lane : 0];
  u32* written = loads ? &block.loads_written : &block.mail_written;
  u32* read = loads ? &block.loads_read : &block.mail_read;
  u32 place = 0;
  Spin spin(Watch{abort, FOR_EVER});
  while (any_lane(is_open)) {
    bool has_done = false;
    if (is_open) {
      const bool is_closed = load_acquire<xstage::CTA>(&block.is_closed) != 0;
      if (load_acquire<xstage::CTA>(written) == place) {
        if (is_closed) is_open = false, has_done = true;
      } else if (!loads || mbarrier_test(&block.arrived[place % window], place / window & 1)) {
        bump(loads ? block.loads[place % window] : block.mail[place % MAIL_SLOTS]);
        store_release<xstage::CTA>(read, ++place);
        has_done = true;
      }
    }
    if (any_lane(has_done)) continue;
    if (!all_lanes(lane_index() != 0 || spin.again(written, place + 1))) return;
  }
}

// --- ops of the leader. False: given up.

XSTAGE_DEVICE bool acquire_slot(const Self& self, u32* slot, u32 count) {
  Spin spin(self.watch);
  for (;;) {
    u32 value = group_load(self, slot);
    if (value >= count && group_swap(self, slot, value, value - count) == value) return true;
    if (value < count && !spin.again(slot, count)) return false;
  }
}

XSTAGE_DEVICE bool lead(const Self& self, const Op& op, u64 begun) {
  u32* word;
  switch (op.kind) {
    case COMPUTE:
      spin_until(begun + op.ticks - (op.ticks < self.p.compute_overhead ? op.ticks : self.p.compute_overhead));
      return true;
    case SIGNAL:
      word = self.counter(op.home, op.counter);
      if (op.home != self.gpu) return publish(self, word, op.count, op.flags & SYSTEM_WIDE);
      bump(Mail{word, op.count, op.flags & SYSTEM_WIDE});
      return true;
    case WAIT:
      word = self.counter(op.home, op.counter);
      return op.flags & SYSTEM_WIDE ? wait_acquire<SYSTEM>(word, op.count, self.watch)
                                    : wait_acquire<GPU>(word, op.count, self.watch);
    case ACQUIRE:
      return acquire_slot(self, self.words + FINISHED + self.group.n_lanes + op.counter, op.count);
    default:
      group_add(self, self.words + FINISHED + self.group.n_lanes + op.counter, op.count);
      return true;
  }
}

XSTAGE_DEVICE void note(const Self& self, u32 task, u32 op, u64 begun, u64 ended) {
  Record record{self.number, task, op, static_cast<u32>(begun - self.start), static_cast<u32>(ended - self.start)};
  u32 place = self.block.n_logged++;
  if (place < self.log_records)
    self.log[place] = record;
  else
    self.p.records[fetch_add<GPU>(self.p.n_records, 1)] = record;
}

// A STORE or LOAD, by all threads. False in all of them if given up.
XSTAGE_DEVICE bool move(Self& self, const Op& op, u32 task, u32 number, bool is_broken) {
  LaneBlock& block = self.block;
  const Part mine = part_of(self, op);
  const u32 n_parts = op.n_shares;
  const bool is_store = op.kind == STORE, adds = (op.flags & ADDS) != 0;
  if (any_lane(lane_index() < n_parts && mine.slice == nullptr)) is_broken = true;  // and so the loads are over by now
  u32 place = 0;
  u64 begun = 0;
  if (self.is_leader() && !is_broken) {
    begun = clock_ticks();
    place = load_relaxed<xstage::CTA>(&block.loads_written);
    if (op.kind == LOAD && place >= self.lane.window)
      is_broken = !wait_acquire<xstage::CTA>(&block.loads_read, place + 1 - self.lane.window, self.watch);
  }
  if (self.is_leader() && is_broken) block.is_broken = 1;
  self.meet();
  if (block.is_broken) return false;
  if (self.is_leader() && is_store) begun = clock_ticks();
  if (is_store) {
    store(self, n_parts, mine, adds);
  } else {
    load(self, op);
    cp_async_arrive(&block.arrived[load_relaxed<xstage::CTA>(&block.loads_written) % self.lane.window]);
  }
  self.meet();
  if (!self.is_leader()) return true;
  note(self, task, number, begun, clock_ticks());
  if (op.kind == LOAD) {
    u32* word = op.counter < 0 ? nullptr : self.counter(op.home, op.counter);
    Mail mail{word, 1, op.flags & SYSTEM_WIDE};
    block.is_broken = !post(self, block.loads, self.lane.window, &block.loads_written, &block.loads_read, mail);
  } else if (op.counter >= 0) {
    for (u32 i = 0; i < op.n_shares && !block.is_broken; ++i) {
      u32 gpu = self.p.shares[op.target + i].gpu;
      u32* word = self.counter(gpu, op.counter + static_cast<i32>(op.count) * static_cast<i32>(gpu));
      block.is_broken = !publish(self, word, 1, op.flags & SYSTEM_WIDE);
    }
  }
  return true;
}

XSTAGE_DEVICE void run_lane(Self& self) {
  LaneBlock& block = self.block;
  u32 side = 0;
  bool is_broken = false;  // the leader's; the others learn it where they meet
  if (self.is_leader()) spin_until(self.start + self.lane.start_ticks);
  for (u32 begun = 0;; ++begun) {
    if (self.is_leader()) block.entry = is_broken ? BROKEN : next_entry(self, begun);
    self.meet();
    u32 index = block.entry;
    if (index >= BROKEN) return;
    const Entry& entry = self.p.entries[index];
    Run run = self.p.runs[entry.first_run + self.lane.seat];
    for (u32 first = 0; first < run.n_ops || first == 0; first += WINDOW_OPS, side ^= 1) {
      u32 n_ops = run.n_ops - first < WINDOW_OPS ? run.n_ops - first : WINDOW_OPS;
      for (u32 i = self.thread; i < n_ops; i += self.n_threads) block.ops[side][i] = self.p.ops[run.first_op + first + i];
      self.meet();
      for (u32 i = 0; i < n_ops; ++i) {
        const Op& op = block.ops[side][i];
        u32 number = run.first_op + first + i;
        if (op.kind == STORE || op.kind == LOAD) {
          if (!move(self, op, entry.task, number, is_broken)) return;
          if (self.is_leader()) is_broken = block.is_broken;
        } else if (self.is_leader() && !is_broken) {
          u64 before = clock_ticks();
          is_broken = !lead(self, op, before);
          note(self, entry.task, number, before, clock_ticks());
        }
      }
    }
    if (self.is_leader()) group_add(self, self.words + FINISHED + self.lane.seat, 1);
  }
}

// All threads of the grid: lines of a table, each once.
XSTAGE_DEVICE void bring_near(const void* table, u32 bytes) {
  const u64 first = static_cast<u64>(cta_index()) * cta_threads() + thread_index();
  for (u64 at = first * 128; at < bytes; at += static_cast<u64>(cta_count()) * cta_threads() * 128)
    prefetch(static_cast<const u8*>(table) + at);
}

}  // namespace

XSTAGE_KERNEL(replay, Parameters, MOST_THREADS) {
  const Parameters& p = parameters;
  const u32 number = p.first_cta + cta_index();
  const Cta& cta = p.ctas[number];
  const Watch watch{p.abort, p.patience};

  Edge* edge = reinterpret_cast<Edge*>(shared_memory());  // at which this CTA starts
  LaneBlock* blocks = reinterpret_cast<LaneBlock*>(edge + 1);
  u8* targets = reinterpret_cast<u8*>(blocks + cta.n_lanes);  // 16 bytes a thread, where its loads go
  u32* words = reinterpret_cast<u32*>(targets + cta_threads() * 16);
  Record* logs = reinterpret_cast<Record*>(words + (cta.n_words + 3) / 4 * 4);

  for (u32 i = thread_index(); i < cta.n_words; i += cta_threads()) words[i] = p.group_words[cta.first_word + i];
  if (thread_index() < cta.n_lanes) {
    LaneBlock& block = blocks[thread_index()];
    const Lane& lane = p.lanes[cta.first_lane + thread_index()];
    block.mail_written = block.mail_read = block.loads_written = block.loads_read = 0;
    block.is_closed = block.entry = block.is_broken = block.n_logged = 0;
    for (u32 i = 0; i < lane.window; ++i) mbarrier_init(&block.arrived[i], lane.n_warps * WARP);
    mbarrier_init_done();
  }

  bring_near(p.ops, p.ops_bytes);
  bring_near(p.shares, p.shares_bytes);
  bring_near(p.entries, p.entries_bytes);
  bring_near(p.runs, p.runs_bytes);
  bool has_started = grid_barrier<SYSTEM>(p.barrier, p.n_ctas, 1, watch);
  if (thread_index() == 0 && has_started) {
    u64 agreed = 0;
    if (cta_index() == 0) store_release<GPU>(p.start_edge, global_ns() + p.lead_ns);
    Spin spin(watch);
    while ((agreed = load_acquire<GPU>(p.start_edge)) == 0)
      if (!spin.again(p.start_edge, 1)) break;
    *edge = agreed ? spin_until_edge(agreed) : Edge{0, 0};
    has_started = agreed != 0;
  }
  has_started = sync_cta_all(has_started);
  Times* times = p.times + number;
  if (thread_index() == 0) {
    times->global_start = has_started ? edge->global : 0;
    times->clock_start = has_started ? edge->clock : 0;
  }

  if (has_started) {
    u32 warp = warp_index(), slot = NONE;
    for (u32 i = 0; i < cta.n_lanes; ++i) {
      const Lane& lane = p.lanes[cta.first_lane + i];
      if (warp >= lane.first_warp && warp < lane.first_warp + lane.n_warps) slot = i;
    }
    if (slot != NONE) {
      const Lane& lane = p.lanes[cta.first_lane + slot];
      const Group& group = p.groups[lane.group];
      u32* group_words = group.is_in_shared ? words + (group.first_word - cta.first_word) : p.group_words + group.first_word;
      Self self{p,
                lane,
                group,
                blocks[slot],
                group_words,
                p.counters[cta.gpu],
                logs + slot * cta.log_records,
                targets + thread_index() * 16,
                watch,
                edge->clock,
                lane.number,
                cta.gpu,
                slot,
                thread_index() - lane.first_warp * WARP,
                lane.n_warps * WARP,
                cta.log_records,
                group.is_in_shared != 0,
                0,
                0,
                0};
      run_lane(self);
      cp_async_commit();
      cp_async_wait<0>();
      self.meet();
      if (self.is_leader()) store_release<xstage::CTA>(&self.block.is_closed, 1);
    } else if (warp == cta_threads() / WARP - 1) {  // the courier
      deliver(blocks, p.lanes + cta.first_lane, cta.n_lanes, p.abort);
    }
  }

  sync_cta();
  if (thread_index() == 0) {
    Edge end = spin_until_edge(0);
    times->global_end = end.global;
    times->clock_end = end.clock;
    times->sm = sm_index();
    times->status = load_relaxed<SYSTEM>(p.abort);
    u32 spilled = 0;
    for (u32 i = 0; i < cta.n_lanes; ++i)
      if (blocks[i].n_logged > cta.log_records) spilled += blocks[i].n_logged - cta.log_records;
    times->spilled = spilled;
  }
  for (u32 i = warp_index(); i < cta.n_lanes; i += cta_threads() / WARP) {
    u32 logged = blocks[i].n_logged < cta.log_records ? blocks[i].n_logged : cta.log_records, first = 0;
    if (lane_index() == 0 && logged) first = fetch_add<GPU>(p.n_records, logged);
    first = shuffle(first, 0);
    for (u32 j = lane_index(); j < logged; j += WARP) p.records[first + j] = logs[i * cta.log_records + j];
  }
}
