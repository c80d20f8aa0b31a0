// The interpreter of lowered Programs: persistent, a CTA is an SM, and a few warps of it are a lane. What computing, storing
// and loading mean is a Work, a class that a kernel brings along: replay.cu spins and moves bytes, megamoe.cu computes.
//
// Ranks are ranges of CTAs of one cooperative grid, or a grid on each of several GPUs that can reach each other's memory;
// which memory "another GPU" is, the tables of pointers say (lane_tables.cuh).
//
//     lane      one warp, or several for lanes that move data or compute. Its first thread, the leader, claims tasks, spins,
//               waits, signals, and notes the clock before and after each op; all of its threads do the Work.
//     courier   the last warp of each CTA. It publishes what must wait for earlier stores (counters bumped by a STORE,
//               signals to other GPUs or flagged) and what arrives (loads), so that no lane stands still for a release.
//     clock     ticks of the SM since the start edge, which all CTAs of a GPU saw on the global timer; the same edge and one
//               at the end give the rate.
//     records   kept in shared memory, in one log for all lanes of a CTA; those that do not fit are written at once and
//               counted. Flushed at the end. A build with XSTAGE_NO_RECORDS has none.
//
// A Work has
//     Parameters                       the kernel's, which begin with LaneTables
//     Self                             what a thread knows of its lane: RereadLane, or a class with the same members
//     Work(self)                       in each thread of a lane
//     is_joint(op)                     whether all threads of the lane do this op together (STORE and LOAD always)
//     waits_first(op)                  of a joint op: whether its leader waits as it says before all go on
//     prepare(self, op)                each thread, before the first time of a joint op is noted; false: give up
//     run(self, op, task)              the joint op. Loads use cp.async; the lane arrives at their mbarrier for them
//     spin(self, op, begun)            a COMPUTE of the leader alone
//     end_task()                       each thread, after the last op of a task
//
// Between the two times of an op lies that op and nothing else: no look at the abort word, which is a load from far away, but
// in waits; no release towards another GPU, which would wait for the lane's own stores, but by the courier. What a Work needs
// for an op should be in registers or shared memory when `prepare` returns.
#pragma once

#include "lane_claims.cuh"

namespace xstage {

// --- the courier's post: lanes write, one thread of the courier for each lane and kind reads

template <typename Self>
XSTAGE_DEVICE bool post(const Self& self, Mail* slots, u32 n_slots, u32* written, const u32* read, Mail mail) {
  u32 place = load_relaxed<xstage::CTA>(written);
  if (place - load_acquire<xstage::CTA>(read) >= n_slots) {
    Spin spin(self.watch());
    while (place - load_acquire<xstage::CTA>(read) >= n_slots)
      if (!spin.again(read, place + 1 - n_slots)) return false;
  }
  slots[place % n_slots] = mail;
  store_release<xstage::CTA>(written, place + 1);
  return true;
}

template <typename Self>
XSTAGE_DEVICE bool publish(const Self& self, u32* counter, u32 amount, bool is_system_wide) {
  LaneBlock& block = self.block();
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

// --- ops

template <typename Self>
XSTAGE_DEVICE bool acquire_slot(const Self& self, u32* slot, u32 count) {
  Spin spin(self.watch());
  for (;;) {
    u32 value = group_load(self, slot);
    if (value >= count && group_swap(self, slot, value, value - count) == value) return true;
    if (value < count && !spin.again(slot, count)) return false;
  }
}

template <typename Self, typename Work>
XSTAGE_DEVICE bool lead(const Self& self, Work& work, const Op& op, u64 begun) {
  u32* word;
  switch (op.kind) {
    case COMPUTE:
      work.spin(self, op, begun);
      return true;
    case SIGNAL:
      word = self.counter(op.home, op.counter);
      if (op.flags & BY_COURIER || op.home != self.gpu()) return publish(self, word, op.count, op.flags & SYSTEM_WIDE);
      bump(Mail{word, op.count, op.flags & SYSTEM_WIDE});
      return true;
    case WAIT:
      word = self.counter(op.home, op.counter);
      return op.flags & SYSTEM_WIDE ? wait_acquire<SYSTEM>(word, op.count, self.watch())
                                    : wait_acquire<GPU>(word, op.count, self.watch());
    case ACQUIRE:
      return acquire_slot(self, self.words + FINISHED + self.group().n_lanes + op.counter, op.count);
    default:
      group_add(self, self.words + FINISHED + self.group().n_lanes + op.counter, op.count);
      return true;
  }
}

template <typename Self>
XSTAGE_DEVICE void note(const Self& self, u32 task, u32 op, u64 begun, u64 ended) {
#ifndef XSTAGE_NO_RECORDS
  Record record{self.number(), task, op, static_cast<u32>(begun - self.start()), static_cast<u32>(ended - self.start())};
  u32 place = fetch_add_relaxed<xstage::CTA>(n_logged(), 1);
  if (place < self.log_records())
    self.log()[place] = record;
  else
    self.p.records[fetch_add_relaxed<GPU>(self.p.n_records, 1)] = record;
#else
  (void)self, (void)task, (void)op, (void)begun, (void)ended;
#endif
}

// An op that all threads do. False in all of them if given up.
template <typename Self, typename Work>
XSTAGE_DEVICE bool join(const Self& self, Work& work, const Op& op, u32 task, u32 number, bool is_broken) {
  LaneBlock& block = self.block();
  const bool is_load = op.kind == LOAD, is_timed_from_meeting = op.kind == STORE || op.kind == COMPUTE;
  is_broken |= !work.prepare(self, op);
  u64 begun = 0;
  if (self.is_leader() && !is_broken) {
    begun = clock_ticks();
    u32 place = load_relaxed<xstage::CTA>(&block.loads_written);
    if (is_load && place >= self.window())
      is_broken = !wait_acquire<xstage::CTA>(&block.loads_read, place + 1 - self.window(), self.watch());
    else if (work.waits_first(op))
      is_broken = !lead(self, work, op, begun);
  }
  if (self.is_leader() && is_broken) block.is_broken = 1;
  self.meet();
  if (block.is_broken) return false;
  if (self.is_leader() && is_timed_from_meeting) begun = clock_ticks();
  work.run(self, op, task);
  if (is_load) cp_async_arrive(&block.arrived[load_relaxed<xstage::CTA>(&block.loads_written) % self.window()]);
  self.meet();
  if (!self.is_leader()) return true;
  note(self, task, number, begun, clock_ticks());
  if (is_load) {
    u32* word = op.counter < 0 ? nullptr : self.counter(op.home, op.counter);
    Mail mail{word, 1, op.flags & SYSTEM_WIDE};
    block.is_broken = !post(self, block.loads, self.window(), &block.loads_written, &block.loads_read, mail);
  } else if (op.kind == STORE && op.counter >= 0) {
    for (u32 i = 0; i < op.n_shares && !block.is_broken; ++i) {
      u32 gpu = self.p.shares[op.target + i].gpu;
      u32* word = self.counter(gpu, op.counter + static_cast<i32>(op.count) * static_cast<i32>(gpu));
      block.is_broken = !publish(self, word, 1, op.flags & SYSTEM_WIDE);
    }
  }
  return true;
}

template <typename Self, typename Work>
XSTAGE_DEVICE void run_lane(const Self& self, Work& work) {
  LaneBlock& block = self.block();
  u32 side = 0;
  bool is_broken = false;  // the leader's; the others learn it where they meet
  if (self.is_leader()) spin_until(self.start() + self.lane().start_ticks);
  for (u32 begun = 0;; ++begun) {
    if (self.is_leader()) block.entry = is_broken ? BROKEN : next_entry(self, begun);
    self.meet();
    u32 index = block.entry;
    if (index >= BROKEN) return;
    const Entry& entry = self.p.entries[index];
    Run run = self.p.runs[entry.first_run + self.lane().seat];
    for (u32 first = 0; first < run.n_ops || first == 0; first += WINDOW_OPS, side ^= 1) {
      u32 n_ops = run.n_ops - first < WINDOW_OPS ? run.n_ops - first : WINDOW_OPS;
      for (u32 i = self.thread; i < n_ops; i += self.n_threads) block.ops[side][i] = self.p.ops[run.first_op + first + i];
      self.meet();
      for (u32 i = 0; i < n_ops; ++i) {
        const Op& op = block.ops[side][i];
        u32 number = run.first_op + first + i;
        if (op.kind == STORE || op.kind == LOAD || work.is_joint(op)) {
          if (!join(self, work, op, entry.task, number, is_broken)) return;
          if (self.is_leader()) is_broken = block.is_broken;
        } else if (self.is_leader() && !is_broken) {
          u64 before = clock_ticks();
          is_broken = !lead(self, work, op, before);
          note(self, entry.task, number, before, clock_ticks());
        }
      }
    }
    work.end_task();
    if (self.is_leader()) group_add(self, self.words + FINISHED + self.lane().seat, 1);
  }
}

// The body of a kernel whose lanes do `Work`.
template <typename Work>
XSTAGE_DEVICE void run_lanes(const typename Work::Parameters& p) {
  const u32 number = p.first_cta + cta_index();
  const Cta& cta = p.ctas[number];
  const Watch watch{p.abort, p.patience};

  Edge* edge = start_edge();
  LaneBlock* blocks = lane_blocks();

  for (u32 i = thread_index(); i < cta.n_words; i += cta_threads()) group_words(cta)[i] = p.group_words[cta.first_word + i];
  if (thread_index() < cta.n_lanes) {
    LaneBlock& block = blocks[thread_index()];
    const Lane& lane = p.lanes[cta.first_lane + thread_index()];
    block.mail_written = block.mail_read = block.loads_written = block.loads_read = 0;
    block.is_closed = block.entry = block.is_broken = block.n_logged = 0;
    for (u32 i = 0; i < lane.window; ++i) mbarrier_init(&block.arrived[i], lane.n_warps * WARP);
    mbarrier_init_done();
  }

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
      u32* words = group.is_in_shared ? group_words(cta) + (group.first_word - cta.first_word) : p.group_words + group.first_word;
      const typename Work::Self self(p, lane, words, slot);
      Work work(self);
      run_lane(self, work);
      cp_async_commit();
      cp_async_wait<0>();
      self.meet();
      if (self.is_leader()) store_release<xstage::CTA>(&self.block().is_closed, 1);
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
    times->spilled = *n_logged() > cta.log_records ? *n_logged() - cta.log_records : 0;
  }
  const u32 logged = *n_logged() < cta.log_records ? *n_logged() : cta.log_records, n_warps = cta_threads() / WARP;
  const u32 each = (logged + n_warps - 1) / n_warps, mine = warp_index() * each;
  if (mine < logged) {
    const u32 many = logged - mine < each ? logged - mine : each;
    u32 first = lane_index() == 0 ? fetch_add_relaxed<GPU>(p.n_records, many) : 0;
    first = shuffle(first, 0);
    for (u32 j = lane_index(); j < many; j += WARP) p.records[first + j] = cta_log(cta)[mine + j];
  }
}

}  // namespace xstage
