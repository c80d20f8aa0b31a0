// MegaMoE in one persistent kernel: dispatch pull, first GEMM, SwiGLU, second GEMM, scatter to the owners of the tokens,
// combine. The interpreter of lanes.cuh takes the order of tasks, their guards, and every wait and signal from a Program of
// sim/schedules/megamoe (kernel family `portable`), so every policy is this kernel. fused_megamoe.py writes the tables.
//
//     dispatch   LOAD: a token's row comes to shared memory; the WAIT for it: the row goes on to the rank's pool
//     mma        COMPUTE: slices [first, last) of the main loop, into one of two accumulators in shared memory
//     epilogue   L1, first COMPUTE: gate, up and the top-k weight become a row of the second GEMM's input, in shared memory;
//                second COMPUTE: it is written out. L2, COMPUTE: rows become bf16, STORE: they go to their tokens' owners
//     combine    COMPUTE: the top-k rows of each token are added up
//
// An op says in `ticks` which part of the work it is: the first unit in the low half, the last one in the high half. Slots of
// both pools are those of the Program's ring. What the Program spends on synchronising by itself costs here what it costs.
#include "gemm.cuh"
#include "lanes.cuh"

using namespace xstage;

namespace {

enum TileKind : u32 { OTHER, L1, L2, PULL, COMBINE };

struct alignas(16) Tile {  // of a task
  u32 kind, expert, n_block, n_rows;
  u32 first_row;  // in the table of rows; COMBINE: first token
  u32 pool_row;   // COMBINE: distance of its tokens
  u32 padding[2];
};

struct alignas(16) Row {  // of a pool
  u32 rank, item;         // whose token, and which of its (token, slot) pairs
  u32 pool_row, padding;
};

struct Parameters : LaneTables {
  const Tile* tiles;
  const Row* rows;
  u8* const* landing;           // by rank: rows that others return, [tokens][top-k][hidden]
  u8* const* own_landing;       // by rank: rows that it returns to itself
  const u8* const* source;      // by rank: what others pull, [tokens][hidden] and then 16 bytes a pair: its weight
  const u8* const* own_source;  // by rank: the same for itself
  u8* const* inputs;            // by rank: pool of the first GEMM, [rows][hidden]
  u8* const* middles;           // by rank: pool of the second GEMM, [rows][intermediate]
  float* const* weights;        // by rank: top-k weights, [rows] of the pool
  const u8* const* first_gemm;  // by rank: tiled weights, gate and up columns in turn
  const u8* const* second_gemm;
  const u32* const* owners;     // by rank: to which rank each pair went, or NONE, [tokens][top-k]
  u8* const* results;           // by rank: [tokens][hidden]
  u64 weights_first;  // bytes before the weights of a source
  u32 work_first, hidden, intermediate, topk;
};

static_assert(sizeof(Tile) == 32 && sizeof(Row) == 16 && sizeof(Parameters) == 304, "as in fused_megamoe.py, fused_megamoe_job.py");

constexpr u32 DELIVERS_OR_COMPUTES = 8;  // flag of an op that all threads of a lane do

constexpr float LOG2_E = 1.442695041f;

template <u32 STAGES>
class MegaMoe {
 public:
  using Tiles = Gemm<64, 128, STAGES, 2, 4>;
  static constexpr u32 ROW_CHUNKS = Tiles::N / 8;  // of 8 numbers in a row of a tile

  // Shared memory of the work: stages, two accumulators, a tile of bf16, a row for each dispatch lane.
  static constexpr u32 ACCUMULATORS = STAGES * Tiles::STAGE_BYTES, STAGED = ACCUMULATORS + 2 * Tiles::C_BYTES;
  static constexpr u32 PULLED = STAGED + Tiles::M * Tiles::N * 2;

  using Parameters = ::Parameters;
  using Self = RereadLane<Parameters>;

  XSTAGE_DEVICE explicit MegaMoe(const Self& self) : p_(self.p), n_tasks_(0) {}

  XSTAGE_DEVICE bool is_joint(const Op& op) const { return (op.flags & DELIVERS_OR_COMPUTES) != 0; }
  XSTAGE_DEVICE bool prepare(const Self&, const Op&) const { return true; }
  XSTAGE_DEVICE void spin(const Self&, const Op&, u64) const {}
  XSTAGE_DEVICE void end_task() { ++n_tasks_; }

  XSTAGE_DEVICE void run(const Self& self, const Op& op, u32 task) const {
    const u32 first = static_cast<u32>(op.ticks), last = static_cast<u32>(op.ticks >> 32);
    const Tile& tile = self.p.tiles[task];
    switch (op.kind) {
      case LOAD:
        return pull(self, self.p.rows[first]);
      case WAIT:
        return deliver(self, self.p.rows[first]);
      case STORE:
        return scatter(self, tile, first, last);
      default:
        if (tile.kind == COMBINE) return combine(self, tile);
        if (self.lane().seat == 0) return multiply(self, tile, first, last);
        if (tile.kind == L2) return convert(self, tile, first, last);
        return first == 0 ? activate(self, tile) : write_out(self, tile);
    }
  }

 private:
  const Parameters& p_;
  u32 n_tasks_;  // this lane's; tasks of a group use the two accumulators in turn

  XSTAGE_DEVICE u8* shared() const { return shared_memory() + p_.work_first; }

  XSTAGE_DEVICE float* accumulators() const {
    return reinterpret_cast<float*>(shared() + ACCUMULATORS + n_tasks_ % 2 * Tiles::C_BYTES);
  }

  // A chunk of 8 bf16 of a staged row of `chunks`.
  XSTAGE_DEVICE Vector16* staged(u32 row, u32 chunk, u32 chunks) const {
    return reinterpret_cast<Vector16*>(shared() + STAGED) + row * chunks + (chunk ^ (row & 7));
  }

  // --- dispatch

  XSTAGE_DEVICE u8* pulled(const Self& self) const { return shared() + PULLED + self.lane().seat * (self.p.hidden * 2 + 16); }

  XSTAGE_DEVICE void pull(const Self& self, const Row& row) const {
    const u8* source = (row.rank == self.cta().gpu ? self.p.own_source : self.p.source)[row.rank];
    const u8* token = source + static_cast<u64>(row.item / self.p.topk) * self.p.hidden * 2;
    const u8* weight = source + self.p.weights_first + static_cast<u64>(row.item) * 16;
    u8* to = pulled(self);
    for (u32 at = self.thread * 16; at < self.p.hidden * 2; at += self.n_threads * 16) cp_async16(to + at, token + at);
    if (self.is_leader()) cp_async16(to + self.p.hidden * 2, weight);
  }

  XSTAGE_DEVICE void deliver(const Self& self, const Row& row) const {
    const u32 gpu = self.cta().gpu;
    u8* target = self.p.inputs[gpu] + static_cast<u64>(row.pool_row) * self.p.hidden * 2;
    float* weight = self.p.weights[gpu] + row.pool_row;
    const u8* from = pulled(self);
    for (u32 at = self.thread * 16; at < self.p.hidden * 2; at += self.n_threads * 16)
      *reinterpret_cast<Vector16*>(target + at) = *reinterpret_cast<const Vector16*>(from + at);
    if (self.is_leader()) *weight = *reinterpret_cast<const float*>(from + self.p.hidden * 2);
  }

  // --- mma

  XSTAGE_DEVICE void multiply(const Self& self, const Tile& tile, u32 first, u32 last) const {
    const Parameters& p = self.p;
    const bool is_l2 = tile.kind == L2;
    const u32 depth = is_l2 ? p.intermediate : p.hidden, columns = is_l2 ? p.hidden : 2 * p.intermediate;
    const u32 row_bytes = depth * 2;
    const u8* a = (is_l2 ? p.middles : p.inputs)[self.cta().gpu] + static_cast<u64>(tile.pool_row) * row_bytes;
    const u8* b = (is_l2 ? p.second_gemm : p.first_gemm)[self.cta().gpu] +
                  (static_cast<u64>(tile.expert) * columns + tile.n_block * Tiles::N) * row_bytes;
    Tiles::run(accumulators(), shared(), a, row_bytes, tile.n_rows, b, first, last, first > 0, forgotten(self.thread),
               [&self] { self.meet(); });
  }

  // --- epilogue

  XSTAGE_DEVICE static u32 activated(float gate, float up, float next_gate, float next_up, float weight) {
    float low = gate * fast_reciprocal(1.0f + fast_exp2(-LOG2_E * gate)) * up * weight;
    float high = next_gate * fast_reciprocal(1.0f + fast_exp2(-LOG2_E * next_gate)) * next_up * weight;
    return pack_bf16(low, high);
  }

  XSTAGE_DEVICE void activate(const Self& self, const Tile& tile) const {
    constexpr u32 CHUNKS = ROW_CHUNKS / 2;
    const float* weights = self.p.weights[self.cta().gpu] + tile.pool_row;
    const u32 end = tile.n_rows * CHUNKS;  // read once: stores might change what a table holds, for all the compiler knows
    for (u32 at = self.thread; at < end; at += self.n_threads) {
      u32 row = at / CHUNKS, chunk = at % CHUNKS;
      const float* left = Tiles::accumulator(accumulators(), row, chunk * 2);
      const float* right = Tiles::accumulator(accumulators(), row, chunk * 2 + 1);
      float weight = weights[row];
      *staged(row, chunk, CHUNKS) = Vector16{activated(left[0], left[1], left[2], left[3], weight),
                                             activated(left[4], left[5], left[6], left[7], weight),
                                             activated(right[0], right[1], right[2], right[3], weight),
                                             activated(right[4], right[5], right[6], right[7], weight)};
    }
  }

  XSTAGE_DEVICE void write_out(const Self& self, const Tile& tile) const {
    constexpr u32 CHUNKS = ROW_CHUNKS / 2;
    const u64 row_bytes = static_cast<u64>(self.p.intermediate) * 2;
    const u32 end = tile.n_rows * CHUNKS;
    u8* target = self.p.middles[self.cta().gpu] + tile.pool_row * row_bytes + tile.n_block * Tiles::N;
    for (u32 at = self.thread; at < end; at += self.n_threads) {
      u32 row = at / CHUNKS, chunk = at % CHUNKS;
      *reinterpret_cast<Vector16*>(target + row * row_bytes + chunk * 16) = *staged(row, chunk, CHUNKS);
    }
  }

  XSTAGE_DEVICE void convert(const Self& self, const Tile& tile, u32 first, u32 last) const {
    const u32 end = last < tile.n_rows ? last : tile.n_rows;
    for (u32 at = first * ROW_CHUNKS + self.thread; at < end * ROW_CHUNKS; at += self.n_threads) {
      u32 row = at / ROW_CHUNKS, chunk = at % ROW_CHUNKS;
      const float* c = Tiles::accumulator(accumulators(), row, chunk);
      *staged(row, chunk, ROW_CHUNKS) = Vector16{pack_bf16(c[0], c[1]), pack_bf16(c[2], c[3]), pack_bf16(c[4], c[5]),
                                                 pack_bf16(c[6], c[7])};
    }
  }

  // A thread finds four places before it stores to them: stores are in order, and each place is two loads away.
  XSTAGE_DEVICE void scatter(const Self& self, const Tile& tile, u32 first, u32 last) const {
    constexpr u32 AT_ONCE = XSTAGE_ARCH >= 900 ? 4 : 1;  // before, registers are too few for four
    const u32 gpu = self.cta().gpu, end = last < tile.n_rows ? last : tile.n_rows;
    const u32 chunk = self.thread % ROW_CHUNKS, together = self.n_threads / ROW_CHUNKS;  // rows
    const u32 column = tile.n_block * Tiles::N + chunk * 8;
    const Row* rows = self.p.rows + tile.first_row;
#pragma unroll 1
    for (u32 row = first + self.thread / ROW_CHUNKS; row < end; row += AT_ONCE * together) {
      u8* to[AT_ONCE];
#pragma unroll
      for (u32 j = 0; j < AT_ONCE; ++j)
        if (row + j * together < end) to[j] = landing_place(rows[row + j * together], gpu, column);
#pragma unroll
      for (u32 j = 0; j < AT_ONCE; ++j)
        if (row + j * together < end) remote_store16(to[j], *staged(row + j * together, chunk, ROW_CHUNKS));
    }
  }

  // Where the result of a row from `column` on goes.
  XSTAGE_DEVICE u8* landing_place(const Row& row, u32 gpu, u32 column) const {
    u8* landing = (row.rank == gpu ? p_.own_landing : p_.landing)[row.rank];
    return landing + (static_cast<u64>(row.item) * p_.hidden + column) * 2;
  }

  // --- combine

  XSTAGE_DEVICE void combine(const Self& self, const Tile& tile) const {
    const Parameters& p = self.p;
    const u32 gpu = self.cta().gpu, chunks = p.hidden / 8;
    for (u32 at = self.thread; at < tile.n_rows * chunks; at += self.n_threads) {
      u32 token = tile.first_row + at / chunks * tile.pool_row, chunk = at % chunks;
      float sum[8] = {};
      for (u32 slot = 0; slot < p.topk; ++slot) {
        u32 item = token * p.topk + slot, owner = p.owners[gpu][item];
        if (owner == NONE) continue;
        const u8* row = (owner == gpu ? p.own_landing : p.landing)[gpu] + static_cast<u64>(item) * p.hidden * 2;
        Vector16 v = remote_load16(row + chunk * 16);
        const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
          sum[2 * i] += low_bf16(words[i]);
          sum[2 * i + 1] += high_bf16(words[i]);
        }
      }
      u8* result = p.results[gpu] + static_cast<u64>(token) * p.hidden * 2 + chunk * 16;
      *reinterpret_cast<Vector16*>(result) = Vector16{pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]),
                                                      pack_bf16(sum[4], sum[5]), pack_bf16(sum[6], sum[7])};
    }
  }
};

}  // namespace

XSTAGE_KERNEL(megamoe, Parameters, 512) { run_lanes<MegaMoe<3>>(parameters); }

// For GPUs with less shared memory.
XSTAGE_KERNEL(megamoe_two_stages, Parameters, 512) { run_lanes<MegaMoe<2>>(parameters); }
