// Every instruction of device.cuh, in kernels small enough to be compared with NumPy. `fault` plants a mistake.
#include "device.cuh"

using namespace xstage;

struct Parameters {
  const u8* input;
  u8* output;
  u32* flags;
  u32* abort;
  u64 patience;
  u32 fault, padding;
};

// input: u32 by thread. output: u32 [8][threads].
XSTAGE_KERNEL(collectives, Parameters, 64) {
  const u32 thread = thread_index(), n = cta_threads();
  const u32 mine = reinterpret_cast<const u32*>(parameters.input)[thread];
  u32* out = reinterpret_cast<u32*>(parameters.output) + thread;
  out[0] = ballot(mine % 3 == 0);
  out[n] = shuffle(mine, (lane_index() + 5) % WARP);
  u32 sum = mine;
  for (u32 bits = WARP / 2; bits; bits /= 2) sum += shuffle_xor(sum, bits);
  out[2 * n] = sum;
  out[3 * n] = sync_cta_all(mine < 1000) ? 1 : 0;
  out[4 * n] = sync_cta_all(mine < 2) ? 1 : 0;
  const u64 wide = shuffle(static_cast<u64>(mine) << 32 | thread, 3);
  out[5 * n] = static_cast<u32>(wide >> 32) + static_cast<u32>(wide);
  if (lane_index() < 16) out[6 * n] = ballot(mine & 1, 0xffff);  // half a warp
  u32* shared = reinterpret_cast<u32*>(shared_memory());
  shared[thread] = mine;
  if (parameters.fault == 1 && lane_index() == 3)
    sync_warp();
  else if (parameters.fault == 1)
    ballot(true);
  if (parameters.fault != 2) sync_named(1 + warp_index(), WARP);
  out[7 * n] = shared[thread ^ 1];
  if (parameters.fault == 3 && warp_index() == 1) return;
  if (parameters.fault == 3) sync_named(9, 2 * WARP);
}

// input: bf16 A [16][16], B [16][8] and C float [16][8] after them. output: float D = A B + C [16][8], then A through
// ldmatrix_transposed [4][32] words, then input A as bf16 of float of bf16 [16][16].
XSTAGE_KERNEL(matrix, Parameters, 32) {
  const u32 t = lane_index(), g = t / 4, c = 2 * (t % 4);
  u32* words = reinterpret_cast<u32*>(shared_memory());
  const u32* input = reinterpret_cast<const u32*>(parameters.input);
  for (u32 i = t; i < 128 + 64; i += WARP) words[i] = input[i];
  sync_warp();
  const bf16* A = reinterpret_cast<const bf16*>(words);
  const bf16* B = A + 256;
  const float* C = reinterpret_cast<const float*>(input + 192);
  u32 a[4], transposed[4];
  ldmatrix4(a, A + (t % 16) * 16 + t / 16 * 8 + (parameters.fault == 1 ? 1 : 0));
  ldmatrix4_transposed(transposed, A + (t % 16) * 16 + t / 16 * 8);
  u32 b[2];
  for (u32 j = 0; j < 2; ++j)
    b[j] = pack_bf16(to_float(B[(c + 8 * j) * 8 + g]), to_float(B[(c + 8 * j + 1) * 8 + g]));
  float d[4] = {C[g * 8 + c], C[g * 8 + c + 1], C[(g + 8) * 8 + c], C[(g + 8) * 8 + c + 1]};
  mma_bf16(d, a, b[0], b[1]);
  float* D = reinterpret_cast<float*>(parameters.output);
  D[g * 8 + c] = d[0];
  D[g * 8 + c + 1] = d[1];
  D[(g + 8) * 8 + c] = d[2];
  D[(g + 8) * 8 + c + 1] = d[3];
  u32* rest = reinterpret_cast<u32*>(D + 128);
  for (u32 j = 0; j < 4; ++j) rest[j * WARP + t] = transposed[j];
  rest += 128;
  for (u32 i = t; i < 128; i += WARP) rest[i] = pack_bf16(low_bf16(words[i]), high_bf16(words[i]));
}

// input: float by thread. output: its bf16 as u32.
XSTAGE_KERNEL(rounding, Parameters, 64) {
  const float value = reinterpret_cast<const float*>(parameters.input)[thread_index()];
  reinterpret_cast<u32*>(parameters.output)[thread_index()] = to_bf16(value).bits;
}

// Chunks of 1 KiB through a ring of two: bulk load, add 1 to each word, bulk store. 64 threads, input 8 KiB.
// Faults: 1 the wait for the load comes after its use, 2 no proxy fence before the store, 3 the ring is reused before it was read.
XSTAGE_KERNEL(bulk_pipeline, Parameters, 64) {
  constexpr u32 CHUNK = 1024, CHUNKS = 8;
  const Watch watch{parameters.abort, parameters.patience};
  u8* in = shared_memory();
  u8* out = in + 2 * CHUNK;
  MBarrier* full = reinterpret_cast<MBarrier*>(out + 2 * CHUNK);
  const u32 thread = thread_index();
  if (thread == 0) {
    for (u32 i = 0; i < 2; ++i) mbarrier_init(full + i, 1);
    mbarrier_init_done();
  }
  sync_cta();
  auto fetch = [&](u32 chunk) {
    if (thread != 0 || chunk >= CHUNKS) return;
    bulk_load_begin(full + chunk % 2, CHUNK);
    bulk_load(in + chunk % 2 * CHUNK, parameters.input + chunk * CHUNK, CHUNK, full + chunk % 2);
    bulk_load_end(full + chunk % 2);
  };
  fetch(0);
  for (u32 chunk = 0; chunk < CHUNKS; ++chunk) {
    fetch(chunk + 1);
    bool met = parameters.fault == 1 || mbarrier_wait(full + chunk % 2, chunk / 2 % 2, watch);
    if (thread == 0 && chunk >= 2 && parameters.fault != 3) bulk_wait_read<1>();
    if (!sync_cta_all(met)) break;
    const Vector16* from = reinterpret_cast<const Vector16*>(in + chunk % 2 * CHUNK);
    Vector16* to = reinterpret_cast<Vector16*>(out + chunk % 2 * CHUNK);
    Vector16 v = from[thread];
    to[thread] = Vector16{v.x + 1, v.y + 1, v.z + 1, v.w + 1};
    if (parameters.fault != 2) fence_proxy_async();
    sync_cta();
    if (thread == 0) {
      remote_store_bulk(parameters.output + chunk * CHUNK, to, CHUNK);
      bulk_commit();
    }
    if (parameters.fault == 1 && thread == 0) mbarrier_wait(full + chunk % 2, chunk / 2 % 2, watch);
  }
  if (thread == 0) bulk_wait<0>();
}

// 16 bytes a thread through shared memory by cp.async, read by the next thread. Faults: 1 no wait, 2 no barrier.
XSTAGE_KERNEL(async_copy, Parameters, 64) {
  const u32 thread = thread_index(), n = cta_threads();
  Vector16* shared = reinterpret_cast<Vector16*>(shared_memory());
  const Vector16* input = reinterpret_cast<const Vector16*>(parameters.input);
  for (u32 stage = 0; stage < 2; ++stage) {
    cp_async16(shared + stage * n + thread, input + stage * n + thread);
    cp_async_commit();
  }
  for (u32 stage = 0; stage < 2; ++stage) {
    if (parameters.fault != 1) {
      if (stage == 0)
        cp_async_wait<1>();
      else
        cp_async_wait<0>();
    }
    if (parameters.fault != 2) sync_cta();
    reinterpret_cast<Vector16*>(parameters.output)[stage * n + thread] = shared[stage * n + (thread + 1) % n];
  }
  cp_async_wait<0>();
}

// CTA 0 stores, CTA 1 reads it and answers. Faults: 1 no signal, 2 no wait, 3 the signal comes before the stores of the
// other threads, 4 GPU scope to another GPU, 5 a store beyond the buffer, 6 beyond shared memory, 7 a bulk store of an
// mbarrier that was never initialised, 8 a misaligned vector, 9 GPU scope in shared memory.
XSTAGE_KERNEL(handshake, Parameters, 64) {
  const Watch watch{parameters.abort, parameters.patience};
  const u32 thread = thread_index(), fault = parameters.fault, n = cta_threads();
  Vector16* mail = reinterpret_cast<Vector16*>(parameters.output);
  if (cta_index() == 0) {
    if (fault == 3 && thread == 0) signal_release<SYSTEM>(parameters.flags, 1);
    remote_store16(mail + thread + (fault == 5 ? 2 * n : 0), Vector16{thread, 1, 2, 3});
    if (fault == 6) reinterpret_cast<volatile u32*>(shared_memory())[2048 + thread] = 1;
    if (fault == 7 && thread == 0) mbarrier_arrive(reinterpret_cast<MBarrier*>(shared_memory()));
    if (fault == 8) mail[thread] = *reinterpret_cast<Vector16*>(shared_memory() + 4 * (thread + 1));
    if (fault == 9) add_relaxed<GPU>(reinterpret_cast<u32*>(shared_memory()) + 4 * thread, 1);
    sync_cta();
    if (thread == 0 && fault != 1 && fault != 3) {
      if (fault == 4)
        signal_release<GPU>(parameters.flags, 1);
      else
        signal_release<SYSTEM>(parameters.flags, 1);
    }
    return;
  }
  bool met = thread != 0 || fault == 2 || wait_acquire<SYSTEM>(parameters.flags, 1, watch);
  if (!sync_cta_all(met)) return;
  mail[n + thread] = Vector16{mail[(thread + 1) % n].x + 100, 0, 0, 0};
}

// CTA 0 leaves a line for each thread and gives two signals behind one fence; CTA 1 waits for the first, CTA 2 for the second.
// Faults: 1 no fence, 2 the stores come after the fence, 3 the fence is for this GPU only.
XSTAGE_KERNEL(fenced_handshake, Parameters, 64) {
  const Watch watch{parameters.abort, parameters.patience};
  const u32 thread = thread_index(), fault = parameters.fault, n = cta_threads();
  Vector16* mail = reinterpret_cast<Vector16*>(parameters.output);
  if (cta_index() == 0) {
    if (fault != 2) remote_store16(mail + thread, Vector16{thread, 1, 2, 3});
    sync_cta();
    if (thread != 0) return;
    if (fault == 3)
      fence_release<GPU>();
    else if (fault != 1)
      fence_release<SYSTEM>();
    for (u32 i = 0; i < n && fault == 2; ++i) remote_store16(mail + i, Vector16{i, 1, 2, 3});
    for (u32 i = 0; i < 2; ++i) signal_fenced<SYSTEM>(parameters.flags + i, 1);
    return;
  }
  const bool met = thread != 0 || wait_acquire<SYSTEM>(parameters.flags + cta_index() - 1, 1, watch);
  if (!sync_cta_all(met)) return;
  mail[cta_index() * n + thread] = Vector16{mail[(thread + 1) % n].x + 100, 0, 0, 0};
}

// Every thread of every CTA adds to a word after a grid barrier, and to the next after another. Faults: 1 a CTA stays away.
XSTAGE_KERNEL(rounds, Parameters, 64) {
  const Watch watch{parameters.abort, parameters.patience};
  u32* words = reinterpret_cast<u32*>(parameters.output);
  for (u32 round = 1; round <= 3; ++round) {
    if (parameters.fault == 1 && round == 2 && cta_index() == 0) return;
    add_relaxed<GPU>(words + round, 1);
    if (!grid_barrier<GPU>(parameters.flags, cta_count(), round, watch)) return;
    u32 seen = load_relaxed<GPU>(words + round);
    if (seen != cta_count() * cta_threads()) add_relaxed<GPU>(words, 1);
  }
  u64 before = clock_ticks();
  u64 after = spin_until(before + 500);
  if (after - before < 500) add_relaxed<GPU>(words, 1);
}
