// One tile of gemm.cuh by one CTA, its slices in `n_parts` calls; the accumulator is written out row by row.
#include "gemm.cuh"

using namespace xstage;

namespace {

struct Parameters {
  const u8* a;
  const u8* b;
  float* c;
  u32 n_rows, n_slices, n_parts, padding;
};

using Tile = Gemm<64, 128, 3, 2, 4>;

}  // namespace

XSTAGE_KERNEL(gemm_tile, Parameters, Tile::THREADS) {
  const Parameters& p = parameters;
  u8* stages = shared_memory();
  float* c = reinterpret_cast<float*>(stages + Tile::STAGES * Tile::STAGE_BYTES);
  for (u32 part = 0; part < p.n_parts; ++part) {
    Tile::run(c, stages, p.a, p.n_slices * Tile::DEPTH * 2, p.n_rows, p.b, p.n_slices * part / p.n_parts,
              p.n_slices * (part + 1) / p.n_parts, part > 0, thread_index(), [] { sync_named(1, Tile::THREADS); });
#ifndef FAULT_NO_MEETING
    sync_named(1, Tile::THREADS);
#endif
  }
  for (u32 i = thread_index(); i < p.n_rows * Tile::N; i += Tile::THREADS) {
    u32 row = i / Tile::N, column = i % Tile::N;
    p.c[i] = Tile::accumulator(c, row, column / 8)[column % 8];
  }
}
