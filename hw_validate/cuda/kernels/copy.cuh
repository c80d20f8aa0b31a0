// Copies that run by themselves: cp.async, bulk copies between global and shared memory, and mbarriers. Part of device.cuh.
//
// Emulated copies run late, in any order that the rules allow, so a missing wait shows as wrong data or as a data race.
#pragma once

namespace xstage {

// --- cp.async: 16 bytes a thread, global to shared. Done for the thread after its wait, for others after a barrier then.

XSTAGE_DEVICE void cp_async16(void* shared, const void* global) {
#ifdef XSTAGE_EMULATION
  emulation::cp_async(shared, global, 16);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
#endif
}

XSTAGE_DEVICE void cp_async_commit() {
#ifdef XSTAGE_EMULATION
  emulation::cp_async_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until at most the newest N groups of this thread are under way.
template <int N>
XSTAGE_DEVICE void cp_async_wait() {
#ifdef XSTAGE_EMULATION
  emulation::cp_async_wait(N);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// --- mbarrier: 8 bytes of shared memory. A phase ends when the expected arrivals and bytes have come.

using MBarrier = u64;

// By one thread; the others may use it after mbarrier_init_done() of that thread and a barrier of the CTA.
XSTAGE_DEVICE void mbarrier_init(MBarrier* barrier, u32 arrivals) {
#ifdef XSTAGE_EMULATION
  emulation::mbarrier_init(barrier, arrivals);
#else
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
#endif
}

// Makes initialised mbarriers known to bulk copies.
XSTAGE_DEVICE void mbarrier_init_done() {
#if !defined(XSTAGE_EMULATION) && XSTAGE_ARCH >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

XSTAGE_DEVICE void mbarrier_arrive(MBarrier* barrier) {
#ifdef XSTAGE_EMULATION
  emulation::mbarrier_arrive(barrier, 0);
#else
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

// Arrive when all cp.async that this thread issued before are done; counts as one of the expected arrivals.
XSTAGE_DEVICE void cp_async_arrive(MBarrier* barrier) {
#ifdef XSTAGE_EMULATION
  emulation::cp_async_arrive(barrier);
#else
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

// Whether the phase of this parity (0 for the first, 1 for the second, 0 for the third, ...) has ended. Not `try_wait`, which
// may hold the thread until the phase ends: who waits looks at an abort word, too.
XSTAGE_DEVICE bool mbarrier_test(MBarrier* barrier, u32 parity) {
#ifdef XSTAGE_EMULATION
  return emulation::mbarrier_test(barrier, parity);
#else
  u32 done;
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
  return done != 0;
#endif
}

// Wait for the end of that phase. False if given up.
XSTAGE_DEVICE bool mbarrier_wait(MBarrier* barrier, u32 parity, const Watch& watch) {
  if (mbarrier_test(barrier, parity)) return true;
  Spin spin(watch);
  while (!mbarrier_test(barrier, parity))
    if (!spin.again(barrier, parity)) return false;
  return true;
}

// --- bulk loads: one thread, global to shared; addresses and sizes are multiples of 16 bytes.
//     bulk_load_begin(barrier, all bytes);  bulk_load(...) once or more;  bulk_load_end(barrier)
// are together one arrival at `barrier`, whose phase ends when the bytes are there. Before sm_90 the thread copies with
// cp.async. If the data was written by ordinary stores of other SMs, call fence_proxy_async() after acquiring its flag.

XSTAGE_DEVICE void bulk_load_begin([[maybe_unused]] MBarrier* barrier, [[maybe_unused]] u32 bytes) {
#if defined(XSTAGE_EMULATION) && XSTAGE_ARCH >= 900
  emulation::mbarrier_arrive(barrier, bytes);
#elif XSTAGE_ARCH >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#endif
}

XSTAGE_DEVICE void bulk_load(void* shared, const void* global, u32 bytes, [[maybe_unused]] MBarrier* barrier) {
#if defined(XSTAGE_EMULATION) && XSTAGE_ARCH >= 900
  emulation::bulk_load(shared, global, bytes, barrier);
#elif XSTAGE_ARCH >= 900
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
#else
  for (u32 at = 0; at < bytes; at += 16) cp_async16(static_cast<u8*>(shared) + at, static_cast<const u8*>(global) + at);
#endif
}

XSTAGE_DEVICE void bulk_load_end([[maybe_unused]] MBarrier* barrier) {
#if XSTAGE_ARCH < 900
  cp_async_arrive(barrier);
#endif
}

// --- bulk stores: the other remote store. Every thread that wrote the source calls fence_proxy_async(), then a barrier of
// the CTA (or warp), then one thread calls remote_store_bulk() and bulk_commit(). Before sm_90 that thread copies itself.

// What this thread wrote or acquired is seen by bulk copies that are issued after a following barrier.
XSTAGE_DEVICE void fence_proxy_async() {
#if defined(XSTAGE_EMULATION)
  emulation::fence_proxy_async();
#elif XSTAGE_ARCH >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

XSTAGE_DEVICE void remote_store_bulk(void* global, const void* shared, u32 bytes) {
#if defined(XSTAGE_EMULATION) && XSTAGE_ARCH >= 900
  emulation::bulk_store(global, shared, bytes);
#elif XSTAGE_ARCH >= 900
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)),
               "r"(bytes)
               : "memory");
#else
  for (u32 at = 0; at < bytes; at += 16)
    remote_store16(static_cast<u8*>(global) + at, *reinterpret_cast<const Vector16*>(static_cast<const u8*>(shared) + at));
#endif
}

XSTAGE_DEVICE void bulk_commit() {
#if defined(XSTAGE_EMULATION) && XSTAGE_ARCH >= 900
  emulation::bulk_commit();
#elif XSTAGE_ARCH >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Wait until all but the newest N groups of bulk stores of this thread have read their source: it may be written again.
template <int N>
XSTAGE_DEVICE void bulk_wait_read() {
#if defined(XSTAGE_EMULATION) && XSTAGE_ARCH >= 900
  emulation::bulk_wait(N, true);
#elif XSTAGE_ARCH >= 900
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
#endif
}

// Wait until all but the newest N groups have been written: a signal_release by this thread then covers them.
template <int N>
XSTAGE_DEVICE void bulk_wait() {
#if defined(XSTAGE_EMULATION) && XSTAGE_ARCH >= 900
  emulation::bulk_wait(N, false);
#elif XSTAGE_ARCH >= 900
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
#endif
}

}  // namespace xstage
