// Memory with an order and a scope, remote stores, signals and waits. Part of device.cuh.
//
// Scopes: CTA, GPU, SYSTEM (other GPUs and the host). An order hangs on an access (ld.acquire, st.release, red.release), which
// is what ThreadSanitizer understands. A release beyond the CTA waits for the earlier stores of the thread and for those that
// it has seen through the CTA: on the device it is a fence and then the access. The one bare fence, fence_release, is for who
// has many signals to give at once.
#pragma once

namespace xstage {

enum Scope { CTA, GPU, SYSTEM };

#ifndef XSTAGE_EMULATION
#define XSTAGE_SCOPED(S, before, after, ...)                              \
  if constexpr (S == CTA) asm volatile(before ".cta" after __VA_ARGS__);  \
  else if constexpr (S == GPU) asm volatile(before ".gpu" after __VA_ARGS__); \
  else asm volatile(before ".sys" after __VA_ARGS__)

// An addition without a result. Beyond the CTA words are in global memory; said so, it is RED, which waits for nothing. Of an
// address that may be shared memory it would be ATOM, which comes back.
#define XSTAGE_ADD(S, order, word, amount)                                                                                  \
  if constexpr (S == CTA) asm volatile("red." order ".cta.add.u32 [%0], %1;" ::"l"(word), "r"(amount) : "memory");           \
  else XSTAGE_SCOPED(S, "red." order, ".global.add.u32 [%0], %1;", ::"l"(global_address(word)), "r"(amount) : "memory")
#endif

// --- words (flags, counters, cursors): 4 or 8 bytes, naturally aligned, global or shared

template <Scope S>
XSTAGE_DEVICE u32 load_relaxed(const u32* word) {
#ifdef XSTAGE_EMULATION
  emulation::before_access(word, S);
  return __atomic_load_n(word, __ATOMIC_RELAXED);
#else
  u32 value;
  XSTAGE_SCOPED(S, "ld.relaxed", ".u32 %0, [%1];", : "=r"(value) : "l"(word) : "memory");
  return value;
#endif
}

template <Scope S>
XSTAGE_DEVICE u32 load_acquire(const u32* word) {
#ifdef XSTAGE_EMULATION
  emulation::before_access(word, S);
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#else
  u32 value;
  XSTAGE_SCOPED(S, "ld.acquire", ".u32 %0, [%1];", : "=r"(value) : "l"(word) : "memory");
  return value;
#endif
}

template <Scope S>
XSTAGE_DEVICE u64 load_acquire(const u64* word) {
#ifdef XSTAGE_EMULATION
  emulation::before_access(word, S);
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#else
  u64 value;
  XSTAGE_SCOPED(S, "ld.acquire", ".u64 %0, [%1];", : "=l"(value) : "l"(word) : "memory");
  return value;
#endif
}

template <Scope S>
XSTAGE_DEVICE void store_relaxed(u32* word, u32 value) {
#ifdef XSTAGE_EMULATION
  emulation::before_access(word, S);
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
  emulation::after_write();
#else
  XSTAGE_SCOPED(S, "st.relaxed", ".u32 [%0], %1;", ::"l"(word), "r"(value) : "memory");
#endif
}

template <Scope S>
XSTAGE_DEVICE void store_release(u32* word, u32 value) {
#ifdef XSTAGE_EMULATION
  emulation::before_release<S, XSTAGE_RELEASE_TICKS>();
  emulation::before_access(word, S);
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
  emulation::after_write();
#else
  XSTAGE_SCOPED(S, "st.release", ".u32 [%0], %1;", ::"l"(word), "r"(value) : "memory");
#endif
}

template <Scope S>
XSTAGE_DEVICE void store_release(u64* word, u64 value) {
#ifdef XSTAGE_EMULATION
  emulation::before_release<S, XSTAGE_RELEASE_TICKS>();
  emulation::before_access(word, S);
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
  emulation::after_write();
#else
  XSTAGE_SCOPED(S, "st.release", ".u64 [%0], %1;", ::"l"(word), "l"(value) : "memory");
#endif
}

// Add without a result (red): cheaper than fetch_add, above all to another GPU.
template <Scope S>
XSTAGE_DEVICE void add_relaxed(u32* word, u32 amount) {
#ifdef XSTAGE_EMULATION
  emulation::before_access(word, S);
  __atomic_fetch_add(word, amount, __ATOMIC_RELAXED);
  emulation::after_write();
#else
  XSTAGE_ADD(S, "relaxed", word, amount);
#endif
}

template <Scope S>
XSTAGE_DEVICE void add_release(u32* word, u32 amount) {
#ifdef XSTAGE_EMULATION
  emulation::before_release<S, XSTAGE_RELEASE_TICKS>();
  emulation::before_access(word, S);
  __atomic_fetch_add(word, amount, __ATOMIC_RELEASE);
  emulation::after_write();
#else
  XSTAGE_ADD(S, "release", word, amount);
#endif
}

// The value before the addition; acquires and releases.
template <Scope S>
XSTAGE_DEVICE u32 fetch_add(u32* word, u32 amount) {
#ifdef XSTAGE_EMULATION
  emulation::before_release<S, XSTAGE_RELEASE_TICKS>();
  emulation::before_access(word, S);
  u32 before = __atomic_fetch_add(word, amount, __ATOMIC_ACQ_REL);
  emulation::after_write();
  return before;
#else
  u32 before;
  XSTAGE_SCOPED(S, "atom.acq_rel", ".add.u32 %0, [%1], %2;", : "=r"(before) : "l"(word), "r"(amount) : "memory");
  return before;
#endif
}

// The value before the addition, and no order: it waits for no earlier store.
template <Scope S>
XSTAGE_DEVICE u32 fetch_add_relaxed(u32* word, u32 amount) {
#ifdef XSTAGE_EMULATION
  emulation::before_access(word, S);
  u32 before = __atomic_fetch_add(word, amount, __ATOMIC_RELAXED);
  emulation::after_write();
  return before;
#else
  u32 before;
  XSTAGE_SCOPED(S, "atom.relaxed", ".add.u32 %0, [%1], %2;", : "=r"(before) : "l"(word), "r"(amount) : "memory");
  return before;
#endif
}

// The value before; it has been replaced if it was `expected`. Acquires and releases.
template <Scope S>
XSTAGE_DEVICE u32 compare_swap(u32* word, u32 expected, u32 value) {
#ifdef XSTAGE_EMULATION
  emulation::before_release<S, XSTAGE_RELEASE_TICKS>();
  emulation::before_access(word, S);
  bool swapped = __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  if (swapped) emulation::after_write();
  return expected;
#else
  u32 before;
  XSTAGE_SCOPED(S, "atom.acq_rel", ".cas.b32 %0, [%1], %2, %3;",
                : "=r"(before) : "l"(word), "r"(expected), "r"(value) : "memory");
  return before;
#endif
}

// The same without any order: it waits for no earlier store.
template <Scope S>
XSTAGE_DEVICE u32 compare_swap_relaxed(u32* word, u32 expected, u32 value) {
#ifdef XSTAGE_EMULATION
  emulation::before_access(word, S);
  bool swapped = __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  if (swapped) emulation::after_write();
  return expected;
#else
  u32 before;
  XSTAGE_SCOPED(S, "atom.relaxed", ".cas.b32 %0, [%1], %2, %3;",
                : "=r"(before) : "l"(word), "r"(expected), "r"(value) : "memory");
  return before;
#endif
}

// --- data

// Bring the line of a constant table near, into L2, before it is needed.
XSTAGE_DEVICE void prefetch([[maybe_unused]] const void* address) {
#ifndef XSTAGE_EMULATION
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#endif
}

// 16 bytes of another GPU or of the host, past this SM's L1. Ordinary loads serve for everything else.
XSTAGE_DEVICE Vector16 remote_load16(const void* address) {
#ifdef XSTAGE_EMULATION
  emulation::maybe_yield();
  return *static_cast<const Vector16*>(address);
#else
  Vector16 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address) : "memory");
  return v;
#endif
}

// The remote store of registers: 16 bytes a thread; the lanes of a warp should cover whole lines of 128 bytes. Bulk stores
// from shared memory stand in copy.cuh. Ordered for others by a later signal_release.
XSTAGE_DEVICE void remote_store16(void* address, Vector16 v) {
#ifdef XSTAGE_EMULATION
  emulation::maybe_yield();
  *static_cast<Vector16*>(address) = v;
#else
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
#endif
}

// 32 bytes a thread, aligned to 32: one instruction from sm_100 on, two before.
XSTAGE_DEVICE void remote_store32(void* address, Vector16 first, Vector16 second) {
#if !defined(XSTAGE_EMULATION) && XSTAGE_ARCH >= 1000
  asm volatile("st.global.v8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"l"(address), "r"(first.x), "r"(first.y),
               "r"(first.z), "r"(first.w), "r"(second.x), "r"(second.y), "r"(second.z), "r"(second.w)
               : "memory");
#else
#ifdef XSTAGE_EMULATION
  emulation::check_aligned(address, 32, "a store of 32 bytes");
#endif
  remote_store16(address, first);
  remote_store16(static_cast<u8*>(address) + 16, second);
#endif
}

// The same with 4 or 8 bytes a thread (u32, u64).
template <typename T>
XSTAGE_DEVICE void remote_store(T* address, T value) {
#ifdef XSTAGE_EMULATION
  emulation::maybe_yield();
  *address = value;
#else
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 4)
    asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
  else
    asm volatile("st.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
#endif
}

// Add four floats at the receiver. One instruction from sm_90 on, four before.
XSTAGE_DEVICE void remote_add16(void* address, Vector16 v) {
#ifdef XSTAGE_EMULATION
  emulation::maybe_yield();
  emulation::add_floats(static_cast<float*>(address), &v);
#elif XSTAGE_ARCH >= 900
  asm volatile("red.relaxed.sys.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(bits_float(v.x)),
               "f"(bits_float(v.y)), "f"(bits_float(v.z)), "f"(bits_float(v.w)) : "memory");
#else
  float* floats = static_cast<float*>(address);
  u32 parts[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    asm volatile("red.relaxed.sys.global.add.f32 [%0], %1;" ::"l"(floats + i), "f"(bits_float(parts[i])) : "memory");
#endif
}

// --- spins

// What ends a wait other than its end: a word of this GPU that is not 0 once somebody gave up, and patience in ticks.
struct Watch {
  u32* abort;
  u64 patience;
};

constexpr u64 FOR_EVER = ~u64{0};  // patience of those who wait for others that have patience of their own

enum Abort : u32 { GO_ON = 0, TIMED_OUT = 1, ABORTED_BY_HOST = 2 };

// A wait for memory, as a loop:  Spin spin(watch);  while (!condition) if (!spin.again(word, needed)) return false;
// `word` and `needed` say what is waited for; they are only shown to a person when nothing can run any more.
class Spin {
 public:
  XSTAGE_DEVICE explicit Spin(const Watch& watch) : watch_(watch), since_(clock_ticks()) {
#ifdef XSTAGE_EMULATION
    emulation::begin_spin();
#endif
  }

  // False if the wait is to be given up: too long, or another gave up.
  XSTAGE_DEVICE bool again(const void* word, u64 needed) {
#ifdef XSTAGE_EMULATION
    emulation::spin(word, needed);
#else
    (void)word, (void)needed;
    if (++polls_ % 16 != 0) return true;  // the abort word is far away: look at it now and then
#endif
    if (load_relaxed<SYSTEM>(watch_.abort) != GO_ON) return false;
    if (clock_ticks() - since_ <= watch_.patience) return true;
    compare_swap<SYSTEM>(watch_.abort, GO_ON, TIMED_OUT);
    return false;
  }

 private:
  const Watch watch_;
  const u64 since_;
  u32 polls_ = 0;
};

// Tell others, after everything that this thread did or saw, that `amount` more is done.
template <Scope S>
XSTAGE_DEVICE void signal_release(u32* counter, u32 amount) {
#if defined(XSTAGE_FAULT_LOST_SIGNAL)
  (void)counter, (void)amount;
#elif defined(XSTAGE_FAULT_RELAXED_SIGNAL)
  add_relaxed<S>(counter, amount);
#else
  add_release<S>(counter, amount);
#endif
}

// The two halves of signal_release, for many signals at once: everything that this thread did or saw before its last
// fence_release comes before the signals that it gives by signal_fenced after it. What it did in between does not.
template <Scope S>
XSTAGE_DEVICE void fence_release() {
#if defined(XSTAGE_FAULT_RELAXED_SIGNAL)
#elif defined(XSTAGE_EMULATION)
  emulation::before_release<S, XSTAGE_RELEASE_TICKS>();
  emulation::fence(S);
#else
  XSTAGE_SCOPED(S, "fence.acq_rel", ";", ::: "memory");
#endif
}

// The scope of the fence before must be as wide.
template <Scope S>
XSTAGE_DEVICE void signal_fenced(u32* counter, u32 amount) {
#if defined(XSTAGE_FAULT_LOST_SIGNAL)
  (void)counter, (void)amount;
#elif defined(XSTAGE_EMULATION) && !defined(XSTAGE_FAULT_RELAXED_SIGNAL)
  emulation::before_access(counter, S);
  emulation::release_fenced(counter, S);
  __atomic_fetch_add(counter, amount, __ATOMIC_RELAXED);
  emulation::after_write();
#else
  add_relaxed<S>(counter, amount);
#endif
}

// Whether a monotone counter has reached `needed`; counters may wrap.
XSTAGE_DEVICE bool reached(u32 value, u32 needed) { return static_cast<i32>(value - needed) >= 0; }

// Whether a monotone counter has reached `needed`; if so, everything before its signals is seen. An acquire empties the L1 of
// the SM, so that of the looks of a wait only the last one, behind which something is to be seen, is one.
template <Scope S>
XSTAGE_DEVICE bool reached_acquire(const u32* counter, u32 needed) {
  if (!reached(load_relaxed<S>(counter), needed)) return false;
#ifndef XSTAGE_FAULT_RELAXED_WAIT
  load_acquire<S>(counter);
#endif
  return true;
}

// Wait until a counter is at least `needed`; then everything before its signals is seen. False if given up.
template <Scope S>
XSTAGE_DEVICE bool wait_acquire(const u32* counter, u32 needed, const Watch& watch) {
  if (reached_acquire<S>(counter, needed)) return true;
  Spin spin(watch);
  while (!reached_acquire<S>(counter, needed))
    if (!spin.again(counter, needed)) return false;
  return true;
}

// All threads of `n_ctas` CTAs meet. `counter` counts arrivals; `round` is 1 for its first use, 2 for the second, ...
// False in every thread of a CTA that gave up.
template <Scope S>
XSTAGE_DEVICE bool grid_barrier(u32* counter, u32 n_ctas, u32 round, const Watch& watch) {
  sync_cta();
  bool met = true;
  if (thread_index() == 0) {
    add_release<S>(counter, 1);
    met = wait_acquire<S>(counter, n_ctas * round, watch);
  }
  return sync_cta_all(met);
}

}  // namespace xstage
