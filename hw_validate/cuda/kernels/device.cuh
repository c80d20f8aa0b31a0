// What a kernel of this folder may say to the device: the one place for PTX, each instruction behind a thin function.
// Include this file and nothing else; the parts are
//     device.cuh   who am I (threads, warps, CTAs, SM), clocks, warp and CTA collectives, kernel declaration
//     memory.cuh   loads, stores and additions with an order and a scope; remote stores; signal_release / wait_acquire;
//                  spins with a deadline and an abort flag; grid barrier
//     copy.cuh     cp.async, mbarrier, bulk copies in both directions with their proxy fences
//     matrix.cuh   bf16, ldmatrix, mma.sync m16n8k16, fast exp2
// Every function has a twin for the host (XSTAGE_EMULATION, see emulation.h), so a kernel that uses only these runs on
// CPU threads' fibers as it stands. Rules for kernels:
//     - no threadIdx, blockIdx, __shared__, __syncthreads, printf, or atomics of CUDA: use the functions here;
//     - all shared memory is dynamic: `shared_memory()` gives its start, aligned to 128 bytes;
//     - one parameter, a struct of fixed-size fields by value; declare XSTAGE_KERNEL(name, Parameters, threads) { ... }
//       with `parameters` as its name; blocks are one-dimensional and whole warps;
//     - loops that wait for memory use `Spin`, `wait_acquire` or another function that takes a `Watch`; loops that wait
//       for time use `spin_until`. Any other loop of this kind would hang the emulation;
//     - flags are only ever touched by the functions of memory.cuh, data only by plain accesses or copies; whether data
//       is ordered by flags is what ThreadSanitizer checks.
// Works from sm_80 on. Where an instruction is newer, a fallback of the same meaning stands beside it (XSTAGE_ARCH).
#pragma once

#ifdef XSTAGE_EMULATION
#include "emulation.h"
#else
#define XSTAGE_DEVICE __device__ __forceinline__
#endif

#ifndef XSTAGE_ARCH
#ifdef __CUDA_ARCH__
#define XSTAGE_ARCH __CUDA_ARCH__
#else
#define XSTAGE_ARCH 900
#endif
#endif

namespace xstage {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;

// A vector register of 16 bytes: what one thread stores or copies at once.
struct alignas(16) Vector16 {
  u32 x, y, z, w;
};

// --- who am I

XSTAGE_DEVICE u32 thread_index() {
#ifdef XSTAGE_EMULATION
  return emulation::place().thread;
#else
  return threadIdx.x;
#endif
}

XSTAGE_DEVICE u32 cta_threads() {
#ifdef XSTAGE_EMULATION
  return emulation::place().n_threads;
#else
  return blockDim.x;
#endif
}

XSTAGE_DEVICE u32 cta_index() {
#ifdef XSTAGE_EMULATION
  return emulation::place().cta;
#else
  return blockIdx.x;
#endif
}

XSTAGE_DEVICE u32 cta_count() {
#ifdef XSTAGE_EMULATION
  return emulation::place().n_ctas;
#else
  return gridDim.x;
#endif
}

XSTAGE_DEVICE u32 warp_index() { return thread_index() / WARP; }
XSTAGE_DEVICE u32 lane_index() { return thread_index() % WARP; }

// The SM on which this CTA runs now.
XSTAGE_DEVICE u32 sm_index() {
#ifdef XSTAGE_EMULATION
  return emulation::place().cta;
#else
  u32 sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm;
#endif
}

// Start of the dynamic shared memory of this CTA.
XSTAGE_DEVICE u8* shared_memory() {
#ifdef XSTAGE_EMULATION
  return emulation::place().shared;
#else
  extern __shared__ __align__(128) u8 xstage_shared[];
  return xstage_shared;
#endif
}

#ifndef XSTAGE_EMULATION
// Address of shared and of global memory as instructions take it.
XSTAGE_DEVICE u32 shared_address(const void* shared) { return static_cast<u32>(__cvta_generic_to_shared(shared)); }
XSTAGE_DEVICE u64 global_address(const void* global) { return __cvta_generic_to_global(global); }
#endif

// --- clocks

// Ticks of this SM's clock. Never subtract the ticks of two SMs. (Emulated: steps of the scheduler.)
XSTAGE_DEVICE u64 clock_ticks() {
#ifdef XSTAGE_EMULATION
  return emulation::clock_ticks();
#else
  u64 ticks;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(ticks)::"memory");
  return ticks;
#endif
}

// Nanoseconds of the GPU's global timer, which moves in ticks of 32 ns to 1 us. (Emulated: steps, in ticks of 32.)
XSTAGE_DEVICE u64 global_ns() {
#ifdef XSTAGE_EMULATION
  return emulation::global_ns();
#else
  u64 ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
#endif
}

// Busy until clock_ticks() is at least `tick`; returns the time it then is.
XSTAGE_DEVICE u64 spin_until(u64 tick) {
#ifdef XSTAGE_EMULATION
  return emulation::sleep_until(tick);
#else
  u64 now = clock_ticks();
  while (static_cast<i64>(tick - now) > 0) now = clock_ticks();
  return now;
#endif
}

// Busy until global_ns() is at least `ns`: the edge of a tick of the global timer. Returns the timer.
XSTAGE_DEVICE u64 spin_until_global(u64 ns) {
#ifdef XSTAGE_EMULATION
  return emulation::sleep_until_global(ns);
#else
  u64 now = global_ns();
  while (static_cast<i64>(ns - now) > 0) now = global_ns();
  return now;
#endif
}

// A reading of both clocks at once: `clock` of this SM when the global timer changed to `global`.
struct Edge {
  u64 global, clock;
};

// Busy until global_ns() is at least `ns`, then both clocks. With `ns` = 0: the next change of the global timer.
XSTAGE_DEVICE Edge spin_until_edge(u64 ns) {
#ifdef XSTAGE_EMULATION
  u64 global = emulation::sleep_until_global(ns ? ns : emulation::global_ns() + 1);
  return Edge{global, global + emulation::clock_offset()};
#else
  u64 now = global_ns();
  if (ns == 0) ns = now + 1;
  while (static_cast<i64>(ns - now) > 0) now = global_ns();
  return Edge{now, clock_ticks()};
#endif
}

XSTAGE_DEVICE void sleep_ns(u32 ns) {
#ifdef XSTAGE_EMULATION
  emulation::sleep_until(emulation::clock_ticks() + ns);
#else
  asm volatile("nanosleep.u32 %0;" ::"r"(ns));
#endif
}

// --- registers

// The same value, of which the compiler does not know so: what follows from it is computed anew, not kept in registers.
XSTAGE_DEVICE u32 forgotten(u32 value) {
#ifndef XSTAGE_EMULATION
  asm volatile("" : "+r"(value));
#endif
  return value;
}

// --- collectives of a warp. All lanes in `mask` must come to the same call. Only sync_warp orders memory.

XSTAGE_DEVICE void sync_warp(u32 mask = ALL_LANES) {
#ifdef XSTAGE_EMULATION
  emulation::sync_warp(mask);
#else
  __syncwarp(mask);
#endif
}

XSTAGE_DEVICE u32 ballot(bool vote, u32 mask = ALL_LANES) {
#ifdef XSTAGE_EMULATION
  return emulation::ballot(vote, mask);
#else
  return __ballot_sync(mask, vote);
#endif
}

XSTAGE_DEVICE bool any_lane(bool vote, u32 mask = ALL_LANES) { return ballot(vote, mask) != 0; }
XSTAGE_DEVICE bool all_lanes(bool vote, u32 mask = ALL_LANES) { return ballot(vote, mask) == mask; }

// The value of lane `source`.
XSTAGE_DEVICE u32 shuffle(u32 value, u32 source, u32 mask = ALL_LANES) {
#ifdef XSTAGE_EMULATION
  return emulation::shuffle(value, source, mask);
#else
  return __shfl_sync(mask, value, static_cast<int>(source));
#endif
}

XSTAGE_DEVICE i32 shuffle(i32 value, u32 source, u32 mask = ALL_LANES) {
  return static_cast<i32>(shuffle(static_cast<u32>(value), source, mask));
}

XSTAGE_DEVICE u64 shuffle(u64 value, u32 source, u32 mask = ALL_LANES) {
  u64 high = shuffle(static_cast<u32>(value >> 32), source, mask);
  return high << 32 | shuffle(static_cast<u32>(value), source, mask);
}

XSTAGE_DEVICE u32 float_bits(float value) {
  union {
    float real;
    u32 bits;
  } both;
  both.real = value;
  return both.bits;
}

XSTAGE_DEVICE float bits_float(u32 bits) {
  union {
    u32 bits;
    float real;
  } both;
  both.bits = bits;
  return both.real;
}

XSTAGE_DEVICE float shuffle(float value, u32 source, u32 mask = ALL_LANES) {
  return bits_float(shuffle(float_bits(value), source, mask));
}

// The value of the lane whose number differs in the bits `bits`: the step of a butterfly.
template <typename T>
XSTAGE_DEVICE T shuffle_xor(T value, u32 bits, u32 mask = ALL_LANES) {
  return shuffle(value, lane_index() ^ bits, mask);
}

// --- barriers of a CTA. They order memory among its threads.

XSTAGE_DEVICE void sync_cta() {
#ifdef XSTAGE_EMULATION
  emulation::sync_cta();
#else
  __syncthreads();
#endif
}

// The same; true in every thread if `vote` is true in every thread.
XSTAGE_DEVICE bool sync_cta_all(bool vote) {
#ifdef XSTAGE_EMULATION
  return emulation::sync_cta_all(vote);
#else
  return __syncthreads_and(vote) != 0;
#endif
}

// Barrier `id` (1 to 15) of `threads` threads (a multiple of 32): wait for the others, or (arrive) only be counted. Threads
// of a warp need not come together.
XSTAGE_DEVICE void sync_named(u32 id, u32 threads) {
#ifdef XSTAGE_EMULATION
  emulation::sync_named(id, threads, true);
#else
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

XSTAGE_DEVICE void arrive_named(u32 id, u32 threads) {
#ifdef XSTAGE_EMULATION
  emulation::sync_named(id, threads, false);
#else
  asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

}  // namespace xstage

// XSTAGE_KERNEL(name, Parameters, threads) { body } is a kernel `name` with one argument `parameters` by value, compiled
// for at most `threads` threads and one CTA an SM; on the host also an entry that emulation runs by its name.
#ifndef XSTAGE_EMULATION
#define XSTAGE_KERNEL(name, Parameters, threads) \
  extern "C" __global__ void __launch_bounds__(threads, 1) name(const Parameters parameters)
#endif

#include "memory.cuh"  // first: the others use it
#include "copy.cuh"
#include "matrix.cuh"
