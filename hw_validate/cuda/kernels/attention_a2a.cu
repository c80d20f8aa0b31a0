// FlashAttention forward and the All-to-All of its output (Ulysses) in one persistent kernel. A rank has all tokens of its
// heads; the rows of its output belong to the ranks that own the tokens. The interpreter of lanes.cuh takes the order of
// tiles, who stores what where, and every wait and signal from a Program of sim/schedules/attention_a2a (kernel family
// `portable`), so every policy is this kernel. fused_attention.py writes the tables.
//
//     mma      COMPUTE: a tile, from Q, K and V to bf16 rows in shared memory (attention.cuh)
//     store    STORE: these rows go to their owners (`piggyback`), or to the rank's own memory
//     comm     STORE: rows go from the rank's own memory to their owners
//
// Rows stand in one of two places in shared memory, which tasks of a group use in turn: the rows of a tile may leave while Q
// of the next comes and its main loop runs. The Program's one buffer says when: a tile is handed over when the rows of the
// one before have been read. An op says in `ticks` which part of the work it is; rows of a STORE go to its shares in order.
#include "attention.cuh"
#include "lanes.cuh"

using namespace xstage;

namespace {

enum Part : u32 { OTHER, ATTEND, TO_OWNERS, TO_OWN, COPY };

struct alignas(16) Tile {  // of a task
  u32 batch, head, kv_head;  // of the rank
  u32 first_row, n_rows;
  u32 n_steps;  // of keys
  u32 padding[2];
};

struct Parameters : LaneTables {
  const Tile* tiles;
  u8* const* landing;           // by rank: rows that others return, [batch][tokens of a rank][heads][d]
  u8* const* own_landing;       // by rank: rows that it returns to itself
  u8* const* outputs;           // by rank: its output before it is returned, [batch][tokens][heads of a rank][d]
  const u8* const* queries;     // by rank: [batch][tokens][heads of a rank][d]
  const u8* const* keys;        // by rank: [batch][tokens][K and V heads of a rank][d]
  const u8* const* values;
  u32 work_first, tokens, local_tokens, heads, local_heads, kv_heads, is_causal;
  float scale;  // log2(e) / sqrt(d)
};

static_assert(sizeof(Tile) == 32 && sizeof(Parameters) == 264, "as in fused_attention.py");

constexpr u32 COMPUTES_TOGETHER = 8;  // flag of an op that all threads of a lane do

template <u32 D, u32 STEP, u32 WIDTH>
class AttentionA2a {
 public:
  using Flash = FlashAttention<D, STEP, WIDTH, 2>;
  static constexpr u32 CHUNKS = Flash::CHUNKS, ROW_BYTES = Flash::ROW_BYTES;

  using Parameters = ::Parameters;
  using Self = RereadLane<Parameters>;

  XSTAGE_DEVICE explicit AttentionA2a(const Self& self) : p_(self.p), n_tasks_(0) {}

  XSTAGE_DEVICE bool is_joint(const Op& op) const { return (op.flags & COMPUTES_TOGETHER) != 0; }
  XSTAGE_DEVICE bool prepare(const Self&, const Op&) const { return true; }
  XSTAGE_DEVICE void spin(const Self&, const Op&, u64) const {}
  XSTAGE_DEVICE void end_task() { ++n_tasks_; }

  XSTAGE_DEVICE void run(const Self& self, const Op& op, u32 task) const {
    const Tile& tile = self.p.tiles[task];
    return op.kind == COMPUTE ? attend(self, tile) : store(self, op, tile);
  }

 private:
  const Parameters& p_;
  u32 n_tasks_;  // this lane's; tasks of a group use the two places in turn

  // Shared memory of the work: two places for Q and then O, stages.
  XSTAGE_DEVICE u8* shared() const { return shared_memory() + p_.work_first; }
  XSTAGE_DEVICE u8* held() const { return shared() + n_tasks_ % 2 * Flash::TILE_BYTES; }

  XSTAGE_DEVICE u32 output_stride() const { return p_.local_heads * ROW_BYTES; }

  // Of a row and head in memory of [batch][tokens][heads][d].
  XSTAGE_DEVICE u64 offset(const Tile& tile, u32 heads, u32 head, u32 row) const {
    return ((static_cast<u64>(tile.batch) * p_.tokens + row) * heads + head) * ROW_BYTES;
  }

  // --- mma

  XSTAGE_DEVICE void attend(const Self& self, const Tile& tile) const {
    const u32 gpu = self.cta().gpu;
    const u64 of_head = offset(tile, p_.kv_heads, tile.kv_head, 0);
    auto* source = reinterpret_cast<typename Flash::Source*>(shared() + 2 * Flash::TILE_BYTES);
    if (self.is_leader())
      *source = {p_.queries[gpu] + offset(tile, p_.local_heads, tile.head, tile.first_row),
                 p_.keys[gpu] + of_head,
                 p_.values[gpu] + of_head,
                 output_stride(),
                 p_.kv_heads * ROW_BYTES,
                 tile.first_row,
                 tile.n_rows,
                 p_.tokens,
                 tile.n_steps,
                 p_.is_causal,
                 p_.scale};
    self.meet();
    u8* stages = shared() + 2 * Flash::TILE_BYTES + Flash::SOURCE_BYTES;
    Flash::run(held(), stages, *source, self.thread, [&self] { self.meet(); });
  }

  // --- store, comm

  // Rows of the tile to the GPUs of the op's shares. A thread reads some chunks before it stores them.
  XSTAGE_DEVICE void store(const Self& self, const Op& op, const Tile& tile) const {
    constexpr u32 AT_ONCE = XSTAGE_ARCH >= 900 ? 4 : 2;  // before, registers are too few for four
    const bool is_copy = op.ticks == COPY, is_own = op.ticks == TO_OWN;
    const u32 rank = self.cta().gpu, thread = forgotten(self.thread), chunk = thread % CHUNKS;
    const u32 together = forgotten(self.n_threads) / CHUNKS;  // rows
    u8* own = p_.outputs[rank] + offset(tile, p_.local_heads, tile.head, tile.first_row);
    const u8* from = is_copy ? own : held();
    const u32 from_stride = is_copy ? output_stride() : ROW_BYTES, turns = is_copy ? 0 : 7;  // see Flash::place
    const u32 to_stride = is_own ? output_stride() : p_.heads * ROW_BYTES;
    u32 first = 0;
#pragma unroll 1
    for (u32 i = 0; i < op.n_shares; ++i) {
      const Share share = p_.shares[op.target + i];
      const u32 end = first + share.bytes / ROW_BYTES;
      u8* to = is_own ? own : owned_row(share.gpu, rank, tile, tile.first_row + first);
#pragma unroll 1
      for (u32 row = first + thread / CHUNKS; row < end; row += AT_ONCE * together) {
        Vector16 chunks[AT_ONCE];
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; ++j) {
          const u32 at = row + j * together;
          const u8* chunk_at = from + static_cast<u64>(at) * from_stride + (chunk ^ (at & turns)) * 16;
          if (at < end) chunks[j] = *reinterpret_cast<const Vector16*>(chunk_at);
        }
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; ++j) {
          const u32 at = row + j * together;
          if (at < end) remote_store16(to + static_cast<u64>(at - first) * to_stride + chunk * 16, chunks[j]);
        }
      }
      first = end;
    }
  }

  // Where a row of this rank's output goes in the memory of the rank that owns it.
  XSTAGE_DEVICE u8* owned_row(u32 owner, u32 rank, const Tile& tile, u32 row) const {
    u8* landing = (owner == rank ? p_.own_landing : p_.landing)[owner];
    const u64 token = static_cast<u64>(tile.batch) * p_.local_tokens + row - owner * p_.local_tokens;
    return landing + (token * p_.heads + rank * p_.local_heads + tile.head) * ROW_BYTES;
  }
};

}  // namespace

XSTAGE_KERNEL(attention_64, Parameters, 384) { run_lanes<AttentionA2a<64, 64, 32>>(parameters); }

XSTAGE_KERNEL(attention_128, Parameters, 384) { run_lanes<AttentionA2a<128, 64, 32>>(parameters); }

// For GPUs with less shared memory.
XSTAGE_KERNEL(attention_128_short, Parameters, 384) { run_lanes<AttentionA2a<128, 16, 16>>(parameters); }
