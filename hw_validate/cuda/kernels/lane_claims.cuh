// How groups claim tasks from their queues: the rules of the simulator, by whichever lane of a group comes first. Part of
// lanes.cuh.
#pragma once

#include "lane_tables.cuh"

namespace xstage {

// Words of a group lie in shared memory if the whole group is in this CTA. Those of a group that spans CTAs order nothing:
// an order beyond the CTA would be a release, for which a lane would wait until the stores of its SM have landed. Such groups
// only replay; they hand no data on.
template <typename Self>
XSTAGE_DEVICE u32 group_load(const Self& self, const u32* word) {
  return self.is_group_in_shared() ? load_acquire<xstage::CTA>(word) : load_relaxed<GPU>(word);
}
template <typename Self>
XSTAGE_DEVICE void group_add(const Self& self, u32* word, u32 amount) {
  if (self.is_group_in_shared())
    add_release<xstage::CTA>(word, amount);
  else
    add_relaxed<GPU>(word, amount);
}
template <typename Self>
XSTAGE_DEVICE u32 group_swap(const Self& self, u32* word, u32 expected, u32 value) {
  return self.is_group_in_shared() ? compare_swap<xstage::CTA>(word, expected, value)
                                 : compare_swap_relaxed<GPU>(word, expected, value);
}

// Then slots, then cursors of private queues. A group that spans CTAs has no use for the first four.
enum GroupWord : u32 { LOCK, N_TAKEN, STEP, VISITS, FINISHED };

struct Missing {
  const u32* word;
  u32 needed;
};

template <typename Self>
XSTAGE_DEVICE bool guards_hold(const Self& self, const Entry& entry, Missing& missing) {
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    if (entry.guard_counter[i] < 0) continue;
    const u32* word = self.counter(self.gpu(), entry.guard_counter[i]);
    const u32 needed = entry.guard_count[i];
    const bool holds = entry.guard_is_system_wide ? reached_acquire<SYSTEM>(word, needed) : reached_acquire<GPU>(word, needed);
#ifndef XSTAGE_FAULT_NO_GUARDS
    if (!holds) {
      missing = Missing{word, needed};
      return false;
    }
#else
    (void)holds;
#endif
  }
  return true;
}

template <typename Self>
XSTAGE_DEVICE u32* cursor_of(const Self& self, const Queue& queue) {
  if (queue.is_shared) return self.p.cursors + queue.cursor;
  return self.words() + FINISHED + self.group().n_lanes + self.group().n_slots + queue.cursor;
}

template <typename Self>
XSTAGE_DEVICE u32 head_of(const Self& self, const Queue& queue) {
  const u32* cursor = cursor_of(self, queue);
  return queue.is_shared ? load_relaxed<GPU>(cursor) : group_load(self, cursor);  // guards order data, cursors do not
}

template <typename Self>
XSTAGE_DEVICE bool is_open(const Self& self, i32 number) {
  return number >= 0 && head_of(self, self.p.queues[number]) < self.p.queues[number].n_entries;
}

// The next entry for the group, which is at `step` of its plan for the `visits`-th time; with `claims` nobody else gets it, and
// both go on. BROKEN: not now, `missing` says why. NONE: nothing is left.
template <typename Self>
XSTAGE_DEVICE u32 take(const Self& self, u32 n_taken, Missing& missing, bool claims, u32& at_step, u32& visited) {
  const Group& group = self.group();
  u32 step = at_step, visits = visited, skipped = 0, result = BROKEN;
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
    u32 finished = group_load(self, self.words() + FINISHED + seat);
    if (finished < slowest) slowest = finished;
  }
  if (n_taken - slowest > group.ahead) {
    missing = Missing{self.words() + FINISHED, n_taken - group.ahead};
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
      if (!claims || (!queue.is_shared && self.is_group_in_shared())) {
        if (claims) group_add(self, cursor, 1);
        result = index;
        break;
      }
      // Relaxed, as this orders nothing: that each number goes to one group only, the cursor alone sees to; entries are
      // constants; data is ordered by guards and counters; `taken` by N_TAKEN. An order would be a release, for which the lane
      // would wait until the stores of its SM have landed.
      u32 before = compare_swap_relaxed<GPU>(cursor, head, head + 1);
      if (before == head) {
        result = index;
        break;
      }
      head = before;
    }
  }
  if (result == BROKEN || !claims) return result;
  ++visits;
  if (at.times != 0 && visits >= at.times) {
    ++step;
    visits = 0;
  }
  at_step = step;
  visited = visits;
  return result;
}

// As `next_entry`, for a group that spans CTAs. Every task has three words in `taken`: the entry, and where that left the plan.
// Each says by itself whether it is there already. A lane that finds the first one untouched claims; the others wait for it.
template <typename Self>
XSTAGE_DEVICE u32 next_entry_apart(const Self& self, u32 begun) {
  constexpr u32 CLAIMING = 1, ENTRY = 2;  // and more: ENTRY + entry; NONE as it is
  u32* task = self.p.taken + self.group().first_taken + 3 * begun;
  Spin spin(self.watch());
  u32 seen = compare_swap_relaxed<GPU>(task, 0, CLAIMING);
  if (seen != 0) {
    for (; seen == CLAIMING; seen = load_relaxed<GPU>(task))
      if (!spin.again(task, ENTRY)) return BROKEN;
    return seen == NONE ? NONE : seen - ENTRY;
  }
  u32 plan[2] = {1, 1};
  for (u32 i = 0; i < 2 && begun != 0; ++i)
    while ((plan[i] = load_relaxed<GPU>(task - 2 + i)) == 0)
      if (!spin.again(task - 2 + i, 1)) return BROKEN;
  u32 step = plan[0] - 1, visits = plan[1] - 1, result;
  Missing missing{self.words() + FINISHED, 0};
  while ((result = take(self, begun, missing, true, step, visits)) == BROKEN)
    if (!spin.again(missing.word, missing.needed)) return BROKEN;
  store_relaxed<GPU>(task + 1, step + 1);
  store_relaxed<GPU>(task + 2, visits + 1);
  store_relaxed<GPU>(task, result == NONE ? NONE : ENTRY + result);
  return result;
}

// The entry that this lane runs after `begun` others. NONE: no more. BROKEN: given up.
// A lane tries for the lock when it comes, and then only once it has seen something to claim: a lane that waits writes nothing.
template <typename Self>
XSTAGE_DEVICE u32 next_entry(const Self& self, u32 begun) {
  if (!self.is_group_in_shared()) return next_entry_apart(self, begun);
  u32* taken = self.p.taken + self.group().first_taken;
  if (group_load(self, self.words() + N_TAKEN) > begun) return taken[begun];
  Missing missing{self.words() + N_TAKEN, begun + 1};
  Spin spin(self.watch());
  for (bool holds = group_swap(self, self.words() + LOCK, 0, 1) == 0;;) {
    u32 result = BROKEN;
    bool others_took = group_load(self, self.words() + N_TAKEN) > begun;
    if (!others_took) {
      const u32 step = group_load(self, self.words() + STEP), visits = group_load(self, self.words() + VISITS);
      u32 next_step = step, next_visits = visits;
      result = take(self, begun, missing, holds, next_step, next_visits);
      if (holds && result < BROKEN) {
        group_add(self, self.words() + STEP, next_step - step);
        group_add(self, self.words() + VISITS, next_visits - visits);
        if (self.group().n_lanes > 1) taken[begun] = result;  // for those who follow
        group_add(self, self.words() + N_TAKEN, 1);
      }
    }
    if (holds) {
      group_add(self, self.words() + LOCK, NONE);  // from 1 to 0
      if (result != BROKEN) return result;
      holds = false;
    } else if (result != BROKEN) {
      holds = group_swap(self, self.words() + LOCK, 0, 1) == 0;
      if (!holds) missing = Missing{self.words() + LOCK, 0};
    }
    if (others_took) return taken[begun];
    if (!holds && !spin.again(missing.word, missing.needed)) return BROKEN;
  }
}

}  // namespace xstage
