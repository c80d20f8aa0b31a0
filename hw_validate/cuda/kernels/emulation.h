// The device on the host: what device.cuh calls when a kernel is built with g++ (-DXSTAGE_EMULATION).
//
// Every CUDA thread is a fiber; all fibers of all grids and GPUs run in one OS thread under one scheduler, whose choices come
// from a seed. A fiber gives way where threads of a GPU can see each other: at barriers, warp collectives, accesses to
// flags, remote stores, spins. So
//     - a run is repeatable, and many seeds are many schedules;
//     - a deadlock is "no fiber can run and no copy is under way"; it is reported at once, naming the fibers and the words
//       they wait for. No time limit is involved;
//     - copies (cp.async, bulk) are made late, some schedules make them as late as possible;
//     - time is a count of scheduler steps; a busy wait for time takes no steps if nothing else runs.
// Under ThreadSanitizer each fiber, and the copy engine of each thread, is a thread of its own and only barriers and
// acquire/release pairs order them, so a data race is reported whatever the schedule was. Under AddressSanitizer buffers
// and the shared memory of each CTA end where they should. The fibers' code is compiled with the sanitiser, the scheduler
// (emulation_*.cpp) without.
//
// Not emulated: caches, weak memory other than what ThreadSanitizer finds, the time that things take (but for releases, if
// XSTAGE_RELEASE_TICKS is given), L2 or link limits.
// Checked beyond the device: alignment of vector accesses and copies, lanes of a warp in different collectives, GPU scope
// used on the memory of another GPU, mbarriers that were never initialised, shared memory larger than 227 KiB.
#pragma once

#include <cstddef>
#include <cstdint>

#define XSTAGE_DEVICE inline

namespace xstage::emulation {

using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;

struct Place {
  u32 thread, n_threads, cta, n_ctas, gpu;
  u8* shared;
};

// Of the fiber that runs now.
const Place& place();

u64 clock_ticks();
u64 global_ns();
u64 clock_offset();  // clock_ticks() less the global timer, without its ticks
u64 sleep_until(u64 tick);
u64 sleep_until_global(u64 ns);

// What this fiber did or saw before its last fence is released to a word, by an addition that follows (fence_release). The
// fence must be as wide as the addition.
void fence(int scope);
void release_fenced(const void* word, int scope);
// Before a flag is touched: perhaps lets others run, checks alignment and that a GPU-scope access stays on its GPU.
void before_access(const void* word, int scope);
// After a flag was written: those who spin look again.
void after_write();
void maybe_yield();
void begin_spin();
void spin(const void* word, u64 needed);

void sync_warp(u32 mask);
u32 ballot(bool vote, u32 mask);
u32 shuffle(u32 value, u32 source, u32 mask);
void sync_cta();
bool sync_cta_all(bool vote);
void sync_named(u32 id, u32 threads, bool wait);

void cp_async(void* shared, const void* global, u32 bytes);
void cp_async_commit();
void cp_async_wait(u32 newest);
void cp_async_arrive(u64* barrier);
void mbarrier_init(u64* barrier, u32 arrivals);
void mbarrier_arrive(u64* barrier, u32 expected_bytes);
bool mbarrier_test(u64* barrier, u32 parity);
void fence_proxy_async();
void bulk_load(void* shared, const void* global, u32 bytes, u64* barrier);
void bulk_store(void* global, const void* shared, u32 bytes);
void bulk_commit();
void bulk_wait(u32 newest, bool only_read);

u32 exchange_row(const u32 (&row)[4], u32 (&r)[4], bool transposed);  // the meeting of ldmatrix4
void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]);

// Stops the run with a message for a person: a rule of the device is broken.
[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));
void check_aligned(const void* address, u32 bytes, const char* what);

// Here, and not in emulation_*.cpp, stands what touches the data of kernels, so that sanitisers see it.

// How long a release beyond its CTA takes: on the device, until the stores of its SM that are under way have landed.
#ifndef XSTAGE_RELEASE_TICKS
#define XSTAGE_RELEASE_TICKS 0
#endif
template <int scope, u64 ticks>
static inline void before_release() {
  if (scope != 0 && ticks != 0) sleep_until(clock_ticks() + ticks);
}

static inline void ldmatrix4(u32 (&r)[4], const void* row, bool transposed) {
  check_aligned(row, 16, "a row of ldmatrix");
  const u32* words = static_cast<const u32*>(row);
  const u32 mine[4] = {words[0], words[1], words[2], words[3]};
  exchange_row(mine, r, transposed);
}

static inline void add_floats(float* address, const void* values) {
  check_aligned(address, 16, "a vector addition");
  for (int i = 0; i < 4; ++i) {
    u32* word = reinterpret_cast<u32*>(address + i);
    u32 before = __atomic_load_n(word, __ATOMIC_RELAXED), after;
    do {
      float sum, amount;
      __builtin_memcpy(&sum, &before, 4);
      __builtin_memcpy(&amount, static_cast<const float*>(values) + i, 4);
      sum += amount;
      __builtin_memcpy(&after, &sum, 4);
    } while (!__atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  }
}

// Kernels register themselves (XSTAGE_KERNEL); emulation_main.cpp finds them by name.
struct Kernel {
  Kernel(const char* name, std::size_t parameter_bytes, u32 max_threads, void (*run)(const void*));
  const char* name;
  std::size_t parameter_bytes;
  u32 max_threads;
  void (*run)(const void*);
  Kernel* next;
};

}  // namespace xstage::emulation

#define XSTAGE_KERNEL(name, Parameters, threads)                                                       \
  static void name(const Parameters& parameters);                                                      \
  static ::xstage::emulation::Kernel name##_registered(                                                \
      #name, sizeof(Parameters), threads,                                                              \
      [](const void* parameters) { name(*static_cast<const Parameters*>(parameters)); });              \
  static void name(const Parameters& parameters)
