// The interpreter of lowered Programs: persistent, a CTA is an SM, and a few warps of it are a lane. What computing, storing
// and loading mean is a Work, a class that a kernel brings along: replay.cu spins and moves bytes, megamoe.cu computes.
//
// Ranks are ranges of CTAs of one cooperative grid, or a grid on each of several GPUs that can reach each other's memory;
// which memory "another GPU" is, the tables of pointers say (lane_tables.cuh).
//
//     lane      one warp, or several for lanes that move data or compute. Its first thread, the leader, claims tasks, spins,
//               waits, signals, and notes the clock before and after each op; all of its threads do the Work.
//     courier   the last warp of each CTA. It bumps the counters of every STORE and SIGNAL, because what comes before must have
//               landed first, and that of the whole SM: no lane stands still for a release. A full post box, which holds a
//               lane, shows in `Times`. A WAIT for an own LOAD looks at its arrival itself.
//     clock     ticks of the SM since the start edge, which all CTAs of a GPU saw on the global timer; the same edge and one
//               at the end give the rate.
//     records   kept in shared memory, in one log for all lanes of a CTA; those that do not fit are written at once and
//               counted. Flushed at the end. A build with XSTAGE_NO_RECORDS has none.
//
// A Work has
//     Parameters                       the kernel's, which begin with LaneTables
//     Self                             what a thread knows of its lane: RereadLane, or a class with the same members
//     Work(self)                       in each thread of a lane
//     is_joint(op)                     whether all threads of the lane do this op together (STORE and LOAD always); a WAIT only
//                                      if it is for loads of the lane, which is waited for before all go on
//     prepare(self, op)                each thread, before the first time of a joint op is noted; false: give up
//     run(self, op, task)              the joint op. Loads use cp.async; the lane arrives at their mbarrier for them
//     spin(self, op, begun)            a COMPUTE of the leader alone
//     end_task()                       each thread, after the last op of a task
//
// Between the two times of an op lies that op and nothing else: no look at the abort word, which is a load from far away, but
// in waits; no release beyond the CTA, which would wait for the stores of the SM. What a Work needs for an op should be in
// registers or shared memory when `prepare` returns.
#pragma once

#include "lane_claims.cuh"

namespace xstage {

// --- the courier's post: each lane writes, the courier reads

// Leaves the counters of an op to the courier. False if given up.
template <typename Self>
XSTAGE_DEVICE bool post(const Self& self, const Op& op, u32 number) {
  LaneBlock& block = self.block();
  const u32 place = load_relaxed<xstage::CTA>(&block.mail_written);
  if (place - load_acquire<xstage::CTA>(&block.mail_read) >= MAIL_SLOTS) {
    const u64 since = clock_ticks();
    Spin spin(self.watch());
    while (place - load_acquire<xstage::CTA>(&block.mail_read) >= MAIL_SLOTS)
      if (!spin.again(&block.mail_read, place + 1 - MAIL_SLOTS)) return false;
    block.post_ticks += static_cast<u32>(clock_ticks() - since);
  }
  block.mail[place % MAIL_SLOTS] = Mail{number, (op.flags & SYSTEM_WIDE) != 0};
  store_release<xstage::CTA>(&block.mail_written, place + 1);
  return true;
}

XSTAGE_DEVICE void bump(u32* counter, u32 amount, bool is_system_wide) {
  if (is_system_wide)
    signal_fenced<SYSTEM>(counter, amount);
  else
    signal_fenced<GPU>(counter, amount);
}

// Bumps the counters of a SIGNAL or STORE.
XSTAGE_DEVICE void bump_counters(const LaneTables& p, const Op& op) {
  const bool is_system_wide = (op.flags & SYSTEM_WIDE) != 0;
  if (op.kind == SIGNAL) return bump(counter_word(p.counters[op.home], op.counter), op.count, is_system_wide);
#pragma unroll 1
  for (u32 i = 0; i < op.n_shares; ++i) {
    const u32 gpu = p.shares[op.target + i].gpu;
    bump(counter_word(p.counters[gpu], op.counter + static_cast<i32>(op.count) * static_cast<i32>(gpu)), 1, is_system_wide);
  }
}

// The courier, a whole warp, until all lanes are closed and all mail is delivered. It goes by rounds: a thread for each lane
// looks for mail, all pass one fence for what there is, and then each takes a piece of mail. The fence waits until the stores
// of the SM have landed. Behind a full stage that takes as long as the stage takes to drain: a fence for each piece of mail
// would let the post boxes fill, and lanes would stand before them instead of before the stage.
XSTAGE_DEVICE void deliver(const LaneTables& p, u32 n_lanes) {
  LaneBlock* blocks = lane_blocks();
  bool is_open = lane_index() < n_lanes;
  LaneBlock& block = blocks[is_open ? lane_index() : 0];
  u32 place = 0;
  Spin spin(Watch{p.abort, FOR_EVER});
  for (;;) {
    u32 n_mail = 0;
    bool is_system_wide = false;
    if (is_open) {
      // In this order: a lane closes after its last mail, so that of a lane seen closed all mail is seen.
      const bool is_closed = load_acquire<xstage::CTA>(&block.is_closed) != 0;
      n_mail = load_acquire<xstage::CTA>(&block.mail_written) - place;
      is_open = n_mail != 0 || !is_closed;
#pragma unroll 1
      for (u32 i = 0; i < n_mail; ++i) is_system_wide |= block.mail[(place + i) % MAIL_SLOTS].is_system_wide;
    }
    if (!any_lane(is_open)) return;
    if (!any_lane(n_mail != 0)) {
      if (!all_lanes(lane_index() != 0 || spin.again(&block.mail_written, place + 1))) return;
      continue;
    }
    sync_warp();  // what one has seen, all have
    if (any_lane(is_system_wide))
      fence_release<SYSTEM>();
    else
      fence_release<GPU>();
#pragma unroll 1
    for (u32 lane = 0; lane < n_lanes; ++lane) {
      const u32 first = shuffle(place, lane), many = shuffle(n_mail, lane);
#pragma unroll 1
      for (u32 i = lane_index(); i < many; i += WARP) bump_counters(p, p.ops[blocks[lane].mail[(first + i) % MAIL_SLOTS].op]);
    }
    sync_warp();
    place += n_mail;
    if (n_mail) store_release<xstage::CTA>(&block.mail_read, place);
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

// The first `count` loads of the lane have arrived. Its leader looks for itself: the courier may stand at a fence.
template <typename Self>
XSTAGE_DEVICE bool wait_for_loads(const Self& self, u32 count) {
  LaneBlock& block = self.block();
  for (; block.n_arrived < count; ++block.n_arrived) {
    const u32 slot = block.n_arrived % MOST_LOADS, round = block.n_arrived / MOST_LOADS;
    if (!mbarrier_wait(&block.arrived[slot], round & 1, self.watch())) return false;
  }
  return true;
}

template <typename Self, typename Work>
XSTAGE_DEVICE bool lead(const Self& self, Work& work, const Op& op, u32 number, u64 begun) {
  u32* word;
  switch (op.kind) {
    case COMPUTE:
      work.spin(self, op, begun);
      return true;
    case SIGNAL:
      return post(self, op, number);
    case WAIT:
      if (op.flags & OWN_LOADS) return wait_for_loads(self, op.count);
      word = self.counter(op.home, op.counter);
      return op.flags & SYSTEM_WIDE ? wait_acquire<SYSTEM>(word, op.count, self.watch())
                                    : wait_acquire<GPU>(word, op.count, self.watch());
    case ACQUIRE:
      return acquire_slot(self, self.words() + FINISHED + self.group().n_lanes + op.counter, op.count);
    default:
      group_add(self, self.words() + FINISHED + self.group().n_lanes + op.counter, op.count);
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
  const bool is_timed_from_meeting = op.kind == STORE || op.kind == COMPUTE;
  is_broken |= !work.prepare(self, op);
  u64 begun = 0;
  if (self.is_leader() && !is_broken) {
    begun = clock_ticks();
    const u32 over = block.n_loads >= block.window ? block.n_loads + 1 - block.window : 0;  // the window, with this one
    is_broken = !wait_for_loads(self, op.kind == LOAD ? over : op.flags & OWN_LOADS ? op.count : 0);
  }
  if (self.is_leader() && is_broken) block.is_broken = 1;
  self.meet();
  if (block.is_broken) return false;
  if (self.is_leader() && is_timed_from_meeting) begun = clock_ticks();
  work.run(self, op, task);
  if (op.kind == LOAD) cp_async_arrive(&block.arrived[block.n_loads % MOST_LOADS]);
  self.meet();
  if (!self.is_leader()) return true;
  note(self, task, number, begun, clock_ticks());
  if (op.kind == LOAD) ++block.n_loads;
  if (op.kind == STORE && op.counter >= 0) block.is_broken = !post(self, op, number);
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
          is_broken = self.is_leader() && block.is_broken;
        } else if (self.is_leader() && !is_broken) {
          u64 before = clock_ticks();
          is_broken = !lead(self, work, op, number, before);
          note(self, entry.task, number, before, clock_ticks());
        }
      }
    }
    work.end_task();
    if (self.is_leader()) group_add(self, self.words() + FINISHED + self.lane().seat, 1);
  }
}

// The end of a CTA: its times, and its records to where the host reads them. Nothing is kept for it in registers.
template <typename Parameters>
XSTAGE_DEVICE void close(const Parameters& p) {
  const u32 number = forgotten(p.first_cta + cta_index());
  const Cta& cta = p.ctas[number];
  Times* times = p.times + number;
  if (thread_index() == 0) {
    Edge end = spin_until_edge(0);
    times->global_end = end.global;
    times->clock_end = end.clock;
    times->sm = sm_index();
    times->status = load_relaxed<SYSTEM>(p.abort);
    times->spilled = *n_logged() > cta.log_records ? *n_logged() - cta.log_records : 0;
    times->post_ticks = 0;
    for (u32 i = 0; i < cta.n_lanes; ++i) times->post_ticks += lane_blocks()[i].post_ticks;
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
    const Group& group = p.groups[lane.group];
    block.words = group.is_in_shared ? group_words(cta) + (group.first_word - cta.first_word)
                                     : p.group_words + group.first_word;
    block.window = lane.window;
    block.mail_written = block.mail_read = block.n_loads = block.n_arrived = 0;
    block.is_closed = block.entry = block.is_broken = block.n_logged = block.post_ticks = 0;
    for (u32 i = 0; i < MOST_LOADS; ++i) mbarrier_init(&block.arrived[i], lane.n_warps * WARP);
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
  if (thread_index() == 0) {
    p.times[number].global_start = has_started ? edge->global : 0;
    p.times[number].clock_start = has_started ? edge->clock : 0;
  }

  if (has_started) {
    u32 warp = warp_index(), slot = NONE;
    for (u32 i = 0; i < cta.n_lanes; ++i) {
      const Lane& lane = p.lanes[cta.first_lane + i];
      if (warp >= lane.first_warp && warp < lane.first_warp + lane.n_warps) slot = i;
    }
    if (slot != NONE) {
      const Lane& lane = p.lanes[cta.first_lane + slot];
      const typename Work::Self self(p, lane, slot);
      Work work(self);
      run_lane(self, work);
      cp_async_commit();
      cp_async_wait<0>();
      self.meet();
      if (self.is_leader()) store_release<xstage::CTA>(&self.block().is_closed, 1);
    } else if (warp == cta_threads() / WARP - 1) {  // the courier
      deliver(p, cta.n_lanes);
    }
  }

  sync_cta();
  close(p);
}

}  // namespace xstage
