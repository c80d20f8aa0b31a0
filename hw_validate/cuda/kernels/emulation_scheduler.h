// Inside the emulated device: fibers, CTAs, and the scheduler that runs them. Shared by the emulation_*.cpp files.
//
// These are compiled without sanitisers (they would only report themselves) and linked with them: XSTAGE_THREAD_SANITIZER
// and XSTAGE_ADDRESS_SANITIZER say which one the kernels are compiled with. Nothing here allocates memory while fibers run,
// because ThreadSanitizer takes malloc and free for accesses.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "emulation.h"
#include "emulation_run.h"

#ifdef XSTAGE_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
extern "C" void __tsan_read_range(void*, unsigned long);
extern "C" void __tsan_write_range(void*, unsigned long);
#endif
#ifdef XSTAGE_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace xstage::emulation {

struct Context {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t saved;
#endif
};

// --- what sanitisers are told

using Identity = void*;  // whom ThreadSanitizer takes for the running thread

#ifdef XSTAGE_THREAD_SANITIZER
inline Identity own_identity() { return __tsan_get_current_fiber(); }
inline Identity new_identity() { return __tsan_create_fiber(0); }
inline void drop_identity(Identity identity) { __tsan_destroy_fiber(identity); }
inline void become(Identity identity) { __tsan_switch_to_fiber(identity, __tsan_switch_to_fiber_no_sync); }
inline void tell_release(void* token) { __tsan_release(token); }
inline void tell_acquire(void* token) { __tsan_acquire(token); }
inline void tell_read(const void* from, std::size_t bytes) { __tsan_read_range(const_cast<void*>(from), bytes); }
inline void tell_write(void* to, std::size_t bytes) { __tsan_write_range(to, bytes); }
constexpr std::size_t STACK_BYTES = 256 << 10;
#else
inline Identity own_identity() { return nullptr; }
inline Identity new_identity() { return nullptr; }
inline void drop_identity(Identity) {}
inline void become(Identity) {}
inline void tell_release(void*) {}
inline void tell_acquire(void*) {}
#ifdef XSTAGE_ADDRESS_SANITIZER
inline void tell_read(const void* from, std::size_t bytes) {
  if (void* bad = __asan_region_is_poisoned(const_cast<void*>(from), bytes))
    fault("a copy reads beyond its buffer: %zu bytes from %s, of which not byte %zu", bytes, describe(from).c_str(),
          static_cast<std::size_t>(static_cast<u8*>(bad) - static_cast<const u8*>(from)));
}
inline void tell_write(void* to, std::size_t bytes) {
  if (void* bad = __asan_region_is_poisoned(to, bytes))
    fault("a copy writes beyond its buffer: %zu bytes to %s, of which not byte %zu", bytes, describe(to).c_str(),
          static_cast<std::size_t>(static_cast<u8*>(bad) - static_cast<u8*>(to)));
}
constexpr std::size_t STACK_BYTES = 256 << 10;
#else
inline void tell_read(const void*, std::size_t) {}
inline void tell_write(void*, std::size_t) {}
constexpr std::size_t STACK_BYTES = 64 << 10;
#endif
#endif

constexpr u32 WARP = 32, N_BARRIERS = 16, N_MEETINGS = 8, N_TOKENS = 64;
constexpr std::size_t MOST_SHARED_BYTES = 227 << 10;
constexpr std::size_t BIGGEST_COPY = 1 << 20;

enum class State { RUNNABLE, BARRIER, MEETING, SPIN, SLEEP, COPY, DONE };

struct Cta;
struct Fiber;

struct Barrier {
  u32 arrived = 0, expected = 0, generation = 0;
  bool vote = true, result[2] = {true, true};
  Fiber* waiting = nullptr;
  char token[2];
};

struct Meeting {  // of lanes of a warp at a collective
  u32 mask = 0, arrived = 0;
  const char* what = nullptr;
  void* argument[WARP];
  Fiber* fiber[WARP];
  char* token = nullptr;
};

struct Warp {
  Meeting meetings[N_MEETINGS];
  u32 n_met = 0;
  char tokens[8];
};

struct Copy {
  enum Kind { ASYNC, ARRIVE, LOAD, STORE } kind;
  void* to;
  const void* from;
  u32 bytes, group;
  u64* barrier;
  bool was_read;
  u8* kept;  // the bytes between reading and writing
  Copy* next;
  char token;
};

struct CopyList {  // the copies of one kind of a thread, made in order by an engine of their own
  Identity engine = nullptr;
  Copy *first = nullptr, *last = nullptr;
  u32 committed = 0;  // groups
  char read_token[N_TOKENS], done_token[N_TOKENS];  // by group

  void append(Copy* copy) {
    copy->next = nullptr;
    (last ? last->next : first) = copy;
    last = copy;
  }
  // Groups that are committed and hold a copy that is not yet read (or not yet written).
  u32 under_way(bool only_read) const {
    for (const Copy* copy = first; copy; copy = copy->next)
      if (!only_read || !copy->was_read) return committed - std::min(copy->group, committed);
    return 0;
  }
};

struct Fiber {
  Context context;
  Place place;
  Cta* cta = nullptr;
  const Kernel* kernel = nullptr;
  const void* parameters = nullptr;
  u8* stack = nullptr;
  Identity identity = nullptr;
  void* fake_stack = nullptr;
  State state = State::RUNNABLE;
  Fiber* next = nullptr;  // in the list of those who wait at a barrier
  u64 seen_epoch = 0, wake_tick = 0;
  const void* word = nullptr;
  u64 needed = 0;
  u32 at = 0;  // barrier, or newest groups that may be under way
  const char* what = nullptr;
  CopyList async, loads, stores;
  bool has_copies = false;
  int fenced_scope = -1;      // of its last fence, -1 before the first
  Identity fenced = nullptr;  // who knows what this fiber knew at its last fence
  char fence_token;

  CopyList* lists[3] = {&async, &loads, &stores};
  Fiber() = default;
  Fiber(const Fiber&) = delete;
};

struct Cta {
  u32 alive = 0;
  u64 clock_offset = 0;
  u8* shared = nullptr;
  std::size_t shared_bytes = 0;
  std::vector<Warp> warps;
  Barrier barriers[N_BARRIERS];
  char proxy_token;
  bool slow = false;
};

struct Scheduler {
  Context main;
  Identity main_identity = nullptr;
  const void* main_stack = nullptr;
  std::size_t main_stack_bytes = 0;
  Fiber* current = nullptr;
  std::vector<Fiber*> runnable, spinning, sleeping, copying;
  std::vector<Fiber> fibers;
  std::vector<Cta> ctas;
  std::vector<Region> regions;
  u64 ticks = 0, epoch = 0, random = 0;
  u32 alive = 0, deadlines_passed = 0;
  u32 yield_mask = 0;          // a fiber gives way at an access with probability 1 / (mask + 1)
  enum { SOON, LATE, LAST } copies = SOON;
  bool given_up = false;
  char done_token;
  std::vector<Copy> pool;
  Copy* free_copies = nullptr;
  std::vector<u8> kept;
  std::size_t kept_next = 0;
};

extern Scheduler s;

// --- the scheduler: what a fiber may ask of it

u64 draw();                        // the next random number of this run
void make_runnable(Fiber* fiber);
void block(State state);           // the running fiber stops until somebody makes it runnable
void yield();                      // the running fiber lets others go first
void sync_with_leavers(Cta* cta);  // a thread of the CTA has ended: perhaps the others need wait no longer
void acquire_as(Identity& other, void* token);  // one who acts for the running fiber has seen what was released to `token`
void step_copies(Fiber* owner);    // one step of one of the copy engines of a thread
[[noreturn]] void report_deadlock();  // and end this process

}  // namespace xstage::emulation

