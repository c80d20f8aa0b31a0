// A tile of a matrix product on the Tensor Core, by the warps of one lane: C [M][N] = A [M][K] B [N][K]^T, bf16 in, float out.
//
//     A        rows of K numbers in global memory; fewer than M may be valid
//     B        tiles of [N][DEPTH], one after the other along K, laid out in memory as they lie in shared memory
//     stages   STAGES slices of A and B of depth DEPTH in shared memory, filled by cp.async while others are multiplied
//     C        in shared memory, where another lane takes it up
//
// A row of a slice is 128 bytes in 8 chunks of 16; chunk c of row r lies at c ^ (r % 8), so that neither ldmatrix nor
// cp.async meets a bank twice. A row of C is N floats in chunks of 8; chunk c of row r lies at c ^ (r % 8).
// The host lays B out by `tile_weights` of fused_megamoe.py.
#pragma once

#include "device.cuh"

namespace xstage {

template <u32 M_, u32 N_, u32 STAGES_, u32 WARPS_M_, u32 WARPS_N_>
struct Gemm {
  static constexpr u32 M = M_, N = N_, STAGES = STAGES_, WARPS_M = WARPS_M_, WARPS_N = WARPS_N_;
  static constexpr u32 DEPTH = 64, CHUNKS = DEPTH / 8, WARPS = WARPS_M * WARPS_N, THREADS = WARPS * WARP;
  static constexpr u32 A_BYTES = M * DEPTH * 2, B_BYTES = N * DEPTH * 2, STAGE_BYTES = A_BYTES + B_BYTES;
  static constexpr u32 ROWS = M / WARPS_M, COLUMNS = N / WARPS_N;  // of a warp
  static constexpr u32 FRAGMENTS_M = ROWS / 16, FRAGMENTS_N = COLUMNS / 8;
  static constexpr u32 C_BYTES = M * N * 4;
  static_assert(ROWS % 16 == 0 && COLUMNS % 16 == 0 && STAGES >= 2);

  // Where 8 floats of a row of C begin; `chunk` counts them.
  static XSTAGE_DEVICE float* accumulator(float* c, u32 row, u32 chunk) { return c + row * N + ((chunk ^ (row & 7)) * 8); }

  static XSTAGE_DEVICE u32 place(u32 row, u32 chunk) { return row * (DEPTH * 2) + ((chunk ^ (row & 7)) * 16); }

  // Slice `k` of A and B, of which `n_rows` rows are valid, into a stage. The last valid row stands in for the others.
  static XSTAGE_DEVICE void fetch(u8* stage, const u8* a, u32 row_bytes, u32 n_rows, const u8* b, u32 k, u32 thread) {
#pragma unroll
    for (u32 i = 0; i < M * CHUNKS / THREADS; ++i) {
      u32 at = thread + i * THREADS, row = at / CHUNKS, chunk = at % CHUNKS;
      u32 valid = row < n_rows ? row : n_rows - 1;
      cp_async16(stage + place(row, chunk), a + valid * row_bytes + (k * CHUNKS + chunk) * 16);
    }
    const u8* tile = b + static_cast<u64>(k) * B_BYTES;
#pragma unroll
    for (u32 i = 0; i < B_BYTES / 16 / THREADS; ++i) {
      u32 at = (thread + i * THREADS) * 16;
      cp_async16(stage + A_BYTES + at, tile + at);
    }
  }

  // One slice: of the 16-row fragments of this warp those that hold a valid row.
  static XSTAGE_DEVICE void multiply(float (&sum)[FRAGMENTS_M][FRAGMENTS_N][4], const u8* stage, u32 n_rows, u32 warp) {
    u32 lane = lane_index(), first_row = warp / WARPS_N * ROWS, first_column = warp % WARPS_N * COLUMNS;
#pragma unroll 1
    for (u32 k = 0; k < DEPTH / 16; ++k) {
      u32 a[FRAGMENTS_M][4];
#pragma unroll
      for (u32 i = 0; i < FRAGMENTS_M; ++i)
        ldmatrix4(a[i], stage + place(first_row + i * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
      for (u32 j = 0; j < FRAGMENTS_N; j += 2) {
        u32 b[4];  // 16 columns: k 0-7 and 8-15 of the first 8, then of the last 8
        ldmatrix4(b, stage + A_BYTES + place(first_column + j * 8 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
#pragma unroll
        for (u32 i = 0; i < FRAGMENTS_M; ++i) {
          if (first_row + i * 16 >= n_rows) continue;
          mma_bf16(sum[i][j], a[i], b[0], b[1]);
          mma_bf16(sum[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  // C = or += the product over slices [first, last). By all THREADS threads, `thread` of them; `meet()` is their barrier.
  // Afterwards the stages may be filled again and C be read after another `meet()`.
  template <typename Meet>
  static XSTAGE_DEVICE void run(float* c, u8* stages, const u8* a, u32 row_bytes, u32 n_rows, const u8* b, u32 first,
                                u32 last, bool adds, u32 thread, const Meet& meet) {
    u32 warp = thread / WARP, lane = lane_index();
    u32 row = warp / WARPS_N * ROWS + lane / 4, chunk = warp % WARPS_N * FRAGMENTS_N, column = lane % 4 * 2;
    float sum[FRAGMENTS_M][FRAGMENTS_N][4];
#pragma unroll
    for (u32 i = 0; i < FRAGMENTS_M; ++i)
#pragma unroll
      for (u32 j = 0; j < FRAGMENTS_N; ++j)
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
          const float* from = accumulator(c, row + i * 16 + half * 8, chunk + j) + column;
          sum[i][j][half * 2] = adds ? from[0] : 0.0f;
          sum[i][j][half * 2 + 1] = adds ? from[1] : 0.0f;
        }
#pragma unroll
    for (u32 s = 0; s < STAGES - 1; ++s) {
      if (first + s < last) fetch(stages + s * STAGE_BYTES, a, row_bytes, n_rows, b, first + s, thread);
      cp_async_commit();
    }
    u32 now = 0, next = STAGES - 1;  // stages
    for (u32 k = first; k < last; ++k) {
      cp_async_wait<STAGES - 2>();
      meet();
      if (k + STAGES - 1 < last)
        fetch(stages + next * STAGE_BYTES, a, row_bytes, n_rows, b, k + STAGES - 1, forgotten(thread));
      cp_async_commit();
      multiply(sum, stages + now * STAGE_BYTES, n_rows, warp);
      now = now + 1 == STAGES ? 0 : now + 1;
      next = next + 1 == STAGES ? 0 : next + 1;
    }
    cp_async_wait<0>();
    row = forgotten(row);
#pragma unroll
    for (u32 i = 0; i < FRAGMENTS_M; ++i)
#pragma unroll
      for (u32 j = 0; j < FRAGMENTS_N; ++j)
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
          float* to = accumulator(c, row + i * 16 + half * 8, chunk + j) + column;
          to[0] = sum[i][j][half * 2];
          to[1] = sum[i][j][half * 2 + 1];
        }
  }
};

}  // namespace xstage
