// One tile of FlashAttention forward on the Tensor Core, by the 8 warps of one lane: O = softmax(Q K^T / sqrt(d)) V for 128
// rows of queries, bf16 in and out, float in between, softmax online. After https://arxiv.org/abs/2307.08691.
//
//     Q, O     128 rows in shared memory, the same place: a warp writes its 16 rows of O over the rows of Q that it read
//     stages   STAGES steps of STEP keys and their values, filled by cp.async while others are multiplied; a warp takes
//              WIDTH keys at once
//     mask     row r sees keys below `n_keys` and, if causal, up to r
//
// A row of D numbers is D / 8 chunks of 16 bytes; chunk c of row r lies at c ^ (r % 8), so that neither ldmatrix nor
// cp.async meets a bank twice. The last valid row stands in for rows that are not there. Some loops stay rolled, and values
// are made anew rather than kept, so that 168 registers are enough beside the interpreter of lanes.cuh.
#pragma once

#include "device.cuh"

namespace xstage {

template <u32 D_, u32 STEP_, u32 WIDTH_, u32 STAGES_>
struct FlashAttention {
  static constexpr u32 D = D_, STEP = STEP_, WIDTH = WIDTH_, STAGES = STAGES_;
  static constexpr u32 M = 128, WARPS = 8, THREADS = WARPS * WARP, ROWS = M / WARPS;
  static constexpr u32 CHUNKS = D / 8, ROW_BYTES = D * 2, TILE_BYTES = M * ROW_BYTES, STAGE_BYTES = 2 * STEP * ROW_BYTES;
  static_assert(ROWS == 16 && D % 16 == 0 && WIDTH % 16 == 0 && STEP % WIDTH == 0);
  static_assert(STEP * CHUNKS % THREADS == 0 && STAGES >= 2);

  // Lies in shared memory, from where it is read again and again: registers are for the numbers.
  struct alignas(16) Source {
    const u8 *q, *k, *v;      // first row of the tile's queries, of its head's keys and values
    u32 q_stride, kv_stride;  // bytes from row to row
    u32 first_row, n_rows;    // of the queries
    u32 n_keys, n_steps, is_causal;
    float scale;  // log2(e) / sqrt(d)
  };
  static constexpr u32 SOURCE_BYTES = 64;
  static_assert(sizeof(Source) == SOURCE_BYTES);

  static XSTAGE_DEVICE u32 place(u32 row, u32 chunk) { return row * ROW_BYTES + (chunk ^ (row & 7)) * 16; }

  // The tile into `held`, which is also where Q comes to, through `stages`. By all THREADS threads; `meet()` is their
  // barrier. The stages may be filled again and O be read by others after another `meet()`.
  template <typename Meet>
  static XSTAGE_DEVICE void run(u8* held, u8* stages, const Source& from, u32 thread, const Meet& meet) {
    fetch<M>(held, from.q, from.q_stride, 0, from.n_rows, thread);
#pragma unroll
    for (u32 i = 0; i < STAGES - 1; ++i) fetch_step(stages + i * STAGE_BYTES, from, i, thread);
    float out[D / 8][4] = {}, sum[2] = {}, most[2] = {UNSEEN, UNSEEN};
    for (u32 step = 0; step < from.n_steps; ++step) {
      cp_async_wait<STAGES - 2>();
      meet();
      fetch_step(stages + (step + STAGES - 1) % STAGES * STAGE_BYTES, from, step + STAGES - 1, thread);
#pragma unroll 1
      for (u32 part = 0; part < STEP / WIDTH; ++part) {
        const u8* keys = stages + step % STAGES * STAGE_BYTES + part * WIDTH * ROW_BYTES;
        const u32 first = first_row(thread), key = step * STEP + part * WIDTH, row = from.first_row + first;
        if (first >= from.n_rows || key >= (from.is_causal ? row + ROWS : from.n_keys)) break;
        float scores[WIDTH / 8][4] = {};
        multiply_keys(scores, held, keys, first);
        mask(scores, from, key, row);
        soften(scores, out, sum, most, from.scale);
        multiply_values(out, scores, keys + STEP * ROW_BYTES);
      }
    }
    cp_async_wait<0>();
    sync_warp();  // all lanes have read their Q
    if (first_row(thread) < from.n_rows) write(held, out, sum, first_row(thread));
  }

 private:
  static constexpr float UNSEEN = -1e30f;  // a score that weighs nothing

  // Of the tile, of this warp.
  static XSTAGE_DEVICE u32 first_row(u32 thread) { return forgotten(thread) / WARP * ROWS; }

  // Keys and values of a step, if there is such a step, as a group of copies.
  static XSTAGE_DEVICE void fetch_step(u8* stage, const Source& from, u32 step, u32 thread) {
    if (step < from.n_steps) {
      fetch<STEP>(stage, from.k, from.kv_stride, step * STEP, from.n_keys, thread);
      fetch<STEP>(stage + STEP * ROW_BYTES, from.v, from.kv_stride, step * STEP, from.n_keys, thread);
    }
    cp_async_commit();
  }

  template <u32 N>
  static XSTAGE_DEVICE void fetch(u8* to, const u8* from, u32 stride, u32 first, u32 n_valid, u32 thread) {
    thread = forgotten(thread);
#pragma unroll 1
    for (u32 i = 0; i < N * CHUNKS / THREADS; ++i) {
      u32 at = thread + i * THREADS, row = at / CHUNKS, chunk = at % CHUNKS;
      u32 valid = first + row < n_valid ? first + row : n_valid - 1;
      cp_async16(to + place(row, chunk), from + static_cast<u64>(valid) * stride + chunk * 16);
    }
  }

  // scores += Q K^T: of 16 rows of queries and WIDTH keys.
  static XSTAGE_DEVICE void multiply_keys(float (&scores)[WIDTH / 8][4], const u8* queries, const u8* keys, u32 first) {
    const u32 lane = forgotten(lane_index());
    const u32 query = place(first + lane % 16, lane / 16), key = place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll 1
    for (u32 k = 0; k < D / 16; ++k) {
      u32 a[4];
      ldmatrix4(a, queries + (query ^ k * 32));
#pragma unroll
      for (u32 j = 0; j < WIDTH / 8; j += 2) {
        u32 b[4];  // 16 keys: numbers 0-7 and 8-15 of the first 8, then of the last 8
        ldmatrix4(b, keys + (key ^ k * 32) + j * 8 * ROW_BYTES);
        mma_bf16(scores[j], a, b[0], b[1]);
        mma_bf16(scores[j + 1], a, b[2], b[3]);
      }
    }
  }

  // Of keys from `key` on and 16 rows from `row` on; where all rows see all keys it is left as it is.
  static XSTAGE_DEVICE void mask(float (&scores)[WIDTH / 8][4], const Source& from, u32 key, u32 row) {
    if (key + WIDTH <= from.n_keys && (!from.is_causal || key + WIDTH <= row + 1)) return;
    const u32 lane = forgotten(lane_index());
#pragma unroll
    for (u32 j = 0; j < WIDTH / 8; ++j)
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        u32 mine = key + j * 8 + lane % 4 * 2 + i % 2;
        bool is_seen = mine < from.n_keys && (!from.is_causal || mine <= row + lane / 4 + i / 2 * 8);
        scores[j][i] = is_seen ? scores[j][i] : UNSEEN;
      }
  }

  // Scores become weights; what was added up so far is brought to the new maximum. Each row sees one of the keys at least.
  static XSTAGE_DEVICE void soften(float (&scores)[WIDTH / 8][4], float (&out)[D / 8][4], float (&sum)[2], float (&most)[2],
                                   float scale) {
    float shrunk[2];
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      float largest = most[half];
#pragma unroll
      for (u32 j = 0; j < WIDTH / 8; ++j) largest = larger(largest, larger(scores[j][half * 2], scores[j][half * 2 + 1]));
      largest = larger(largest, shuffle_xor(largest, 1));
      largest = larger(largest, shuffle_xor(largest, 2));
      shrunk[half] = fast_exp2((most[half] - largest) * scale);
      most[half] = largest;
      sum[half] *= shrunk[half];
      const float subtracted = largest * scale;
#pragma unroll
      for (u32 j = 0; j < WIDTH / 8; ++j)
#pragma unroll
        for (u32 i = half * 2; i < half * 2 + 2; ++i) {
          scores[j][i] = fast_exp2(scores[j][i] * scale - subtracted);
          sum[half] += scores[j][i];
        }
    }
    if (all_lanes(shrunk[0] == 1.0f && shrunk[1] == 1.0f)) return;  // no row has a new maximum
#pragma unroll
    for (u32 i = 0; i < D / 8; ++i)
#pragma unroll
      for (u32 j = 0; j < 4; ++j) out[i][j] *= shrunk[j / 2];
  }

  static XSTAGE_DEVICE float larger(float a, float b) { return a > b ? a : b; }

  // out += weights V.
  static XSTAGE_DEVICE void multiply_values(float (&out)[D / 8][4], const float (&weights)[WIDTH / 8][4], const u8* values) {
    const u32 lane = forgotten(lane_index());
    const u32 value = place(lane % 16, lane / 16);
#pragma unroll
    for (u32 k = 0; k < WIDTH / 16; ++k) {
      const u32 a[4] = {pack_bf16(weights[2 * k][0], weights[2 * k][1]), pack_bf16(weights[2 * k][2], weights[2 * k][3]),
                        pack_bf16(weights[2 * k + 1][0], weights[2 * k + 1][1]),
                        pack_bf16(weights[2 * k + 1][2], weights[2 * k + 1][3])};
#pragma unroll
      for (u32 j = 0; j < D / 8; j += 2) {
        u32 b[4];  // 16 columns: values 0-7 and 8-15 of the first 8, then of the last 8
        ldmatrix4_transposed(b, values + k * 16 * ROW_BYTES + (value ^ j * 16));
        mma_bf16(out[j], a, b[0], b[1]);
        mma_bf16(out[j + 1], a, b[2], b[3]);
      }
    }
  }

  // Sums of a row lie with the four lanes that share it.
  static XSTAGE_DEVICE void write(u8* held, const float (&out)[D / 8][4], float (&sum)[2], u32 first) {
    const u32 lane = forgotten(lane_index());
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      sum[half] += shuffle_xor(sum[half], 1);
      sum[half] += shuffle_xor(sum[half], 2);
      const float share = fast_reciprocal(sum[half]);
      const u32 row = first + lane / 4 + half * 8;
#pragma unroll
      for (u32 i = 0; i < D / 8; ++i)
        *reinterpret_cast<u32*>(held + place(row, i) + lane % 4 * 4) =
            pack_bf16(out[i][half * 2] * share, out[i][half * 2 + 1] * share);
    }
  }
};

}  // namespace xstage
