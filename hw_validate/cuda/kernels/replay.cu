// Runs a lowered Program: the interpreter of lanes.cuh with calibrated spins for computing, and stores and loads of bytes.
//
// What an op needs is kept in registers, or is in shared memory before its first time is noted: `prepare` waits for the
// addresses of stores and loads. Nothing inside their loops reads memory.
#include "lanes.cuh"

using namespace xstage;

namespace {

constexpr u32 MOST_THREADS = 768;

struct Parameters : LaneTables {
  u8* const* landing;           // by GPU: where stores of others to it land
  u8* const* own_landing;       // by GPU: where its stores to itself land
  const u8* const* source;      // by GPU: what others load from it
  const u8* const* own_source;  // by GPU: what it loads from itself
  u64 store_slice, load_slice;  // bytes of a lane in each buffer that it stores to or loads from
  u32 granule_bytes, data_seed, compute_overhead, store_width;
  u32 ops_bytes, shares_bytes, entries_bytes, runs_bytes;
};

static_assert(sizeof(Parameters) == 256, "as in replay_job.py");

// What a thread knows of its lane, by value: in registers, not a load away.
class HeldLane : public LaneThread {
 public:
  const Parameters& p;

  XSTAGE_DEVICE HeldLane(const Parameters& p, const Lane& lane, u32 slot)
      : LaneThread(lane, slot),
        p(p),
        lane_(lane),
        group_(p.groups[lane.group]),
        block_(lane_blocks()[slot]),
        words_(block_.words),
        start_(xstage::start_edge()->clock),
        number_(lane.number),
        is_group_in_shared_(group_.is_in_shared != 0) {
    const Cta& cta = p.ctas[p.first_cta + cta_index()];
    gpu_ = cta.gpu;
    log_records_ = cta.log_records;
    log_ = cta_log(cta);
    own_counters_ = p.counters[cta.gpu];
    load_target = load_targets(cta) + thread_index() * 16;
  }

  u8* load_target;

  XSTAGE_DEVICE const Lane& lane() const { return lane_; }
  XSTAGE_DEVICE const Group& group() const { return group_; }
  XSTAGE_DEVICE bool is_group_in_shared() const { return is_group_in_shared_; }
  XSTAGE_DEVICE u32 gpu() const { return gpu_; }
  XSTAGE_DEVICE u32 number() const { return number_; }
  XSTAGE_DEVICE u32 log_records() const { return log_records_; }
  XSTAGE_DEVICE Record* log() const { return log_; }
  XSTAGE_DEVICE LaneBlock& block() const { return block_; }
  XSTAGE_DEVICE u32* words() const { return words_; }
  XSTAGE_DEVICE Watch watch() const { return Watch{p.abort, p.patience}; }
  XSTAGE_DEVICE u64 start() const { return start_; }
  XSTAGE_DEVICE u32* counter(u32 home, i32 number) const {
    return counter_word(home == gpu_ ? own_counters_ : p.counters[home], number);
  }

 private:
  const Lane& lane_;
  const Group& group_;
  LaneBlock& block_;
  u32* words_;
  u64 start_;
  u32 number_;
  bool is_group_in_shared_;
  u32 gpu_, log_records_;
  Record* log_;
  u32* own_counters_;
};

// One GPU's part of a store, as the lanes of a warp hold one each: its bytes, and where this lane's slice is over there.
struct Part {
  u32 bytes;
  u8* slice;
};

XSTAGE_DEVICE Part part_of_lane(const Part& mine, u32 lane) {
  u64 slice = shuffle(static_cast<u64>(reinterpret_cast<size_t>(mine.slice)), lane);
  return Part{shuffle(mine.bytes, lane), reinterpret_cast<u8*>(static_cast<size_t>(slice))};
}

XSTAGE_DEVICE Vector16 payload(u32 number, u32 n_stores, u32 seed, u32 position) {
  if (seed == 0) return Vector16{0, 0, 0, 0};
  return Vector16{number, n_stores, position, seed ^ position * 0x9e3779b9u};
}

class Replay {
 public:
  using Parameters = ::Parameters;
  using Self = HeldLane;

  XSTAGE_DEVICE explicit Replay(const Self&) {}

  XSTAGE_DEVICE bool is_joint(const Op&) const { return false; }
  XSTAGE_DEVICE void end_task() const {}

  XSTAGE_DEVICE void spin(const Self& self, const Op& op, u64 begun) const {
    const u32 overhead = self.p.compute_overhead;
    spin_until(begun + op.ticks - (op.ticks < overhead ? op.ticks : overhead));
  }

  // Asking for every address makes sure that the loads of it are over.
  XSTAGE_DEVICE bool prepare(const Self& self, const Op& op) {
    is_store_ = op.kind == STORE;
    adds_ = (op.flags & ADDS) != 0;
    n_parts_ = op.n_shares;
    mine_ = part_of(self, op);
    source_ = is_store_ ? nullptr : source_of(self, op);
    const bool has_address = is_store_ ? lane_index() >= n_parts_ || mine_.slice != nullptr : source_ != nullptr;
    return all_lanes(has_address);
  }

  XSTAGE_DEVICE void run(const Self& self, const Op& op, u32) {
    if (is_store_)
      store(self);
    else
      load(self, op.bytes);
  }

 private:
  Part mine_{0, nullptr};
  u32 n_parts_ = 0, n_stores_ = 0;
  bool is_store_ = false, adds_ = false;
  const u8* source_ = nullptr;  // this lane's slice of what it loads
  u64 stored_ = 0, loaded_ = 0;  // bytes since the start of this lane's slice

  static XSTAGE_DEVICE Part part_of(const Self& self, const Op& op) {
    if (op.kind != STORE || lane_index() >= op.n_shares) return Part{0, nullptr};
    Share share = self.p.shares[op.target + lane_index()];
    u8* landing = (share.gpu == self.gpu() ? self.p.own_landing : self.p.landing)[share.gpu];
    return Part{share.bytes, landing + self.lane().store_first};
  }

  static XSTAGE_DEVICE const u8* source_of(const Self& self, const Op& op) {
    return (op.target == self.gpu() ? self.p.own_source : self.p.source)[op.target] + self.lane().load_first;
  }

  // `bytes` to a slice, from 16-byte unit `position` of the op on.
  XSTAGE_DEVICE void store_piece(const Self& self, u8* slice, u32 bytes, u32 position) {
    if (stored_ + bytes > self.p.store_slice) stored_ = 0;
    const u32 number = self.number(), nth = n_stores_, seed = self.p.data_seed;
    u8* target = slice + stored_;
    u32 width = adds_ ? 16 : self.p.store_width, step = self.n_threads * width, at = self.thread * width;
    if (adds_) {
      for (; at < bytes; at += step) remote_add16(target + at, Vector16{});
    } else if (width == 32) {
#pragma unroll 4
      for (; at + 16 < bytes; at += step) {
        u32 unit = position + at / 16;
        remote_store32(target + at, payload(number, nth, seed, unit), payload(number, nth, seed, unit + 1));
      }
      if (at < bytes) remote_store16(target + at, payload(number, nth, seed, position + at / 16));
    } else {
#pragma unroll 8
      for (; at < bytes; at += step) remote_store16(target + at, payload(number, nth, seed, position + at / 16));
    }
    stored_ += (bytes + self.p.store_width - 1) / self.p.store_width * self.p.store_width;
  }

  XSTAGE_DEVICE void store(const Self& self) {
    if (n_parts_ == 1) {
      Part part = part_of_lane(mine_, 0);
      store_piece(self, part.slice, part.bytes, 0);
    } else {
      u32 position = 0, granule = self.p.granule_bytes;
      for (u32 dealt = 0; any_lane(mine_.bytes > dealt); dealt += granule)
        for (u32 i = 0; i < n_parts_; ++i) {
          Part part = part_of_lane(mine_, i);
          if (part.bytes <= dealt) continue;
          u32 size = part.bytes - dealt < granule ? part.bytes - dealt : granule;
          store_piece(self, part.slice, size, position);
          position += size / 16;
        }
    }
    ++n_stores_;
  }

  XSTAGE_DEVICE void load(const Self& self, u32 bytes) {
    if (loaded_ + bytes > self.p.load_slice) loaded_ = 0;
    const u8* source = source_ + loaded_;
    for (u32 at = self.thread * 16; at < bytes; at += self.n_threads * 16) cp_async16(self.load_target, source + at);
    loaded_ += bytes;
  }
};

// All threads of the grid: lines of a table, each once.
XSTAGE_DEVICE void bring_near(const void* table, u32 bytes) {
  const u64 first = static_cast<u64>(cta_index()) * cta_threads() + thread_index();
  for (u64 at = first * 128; at < bytes; at += static_cast<u64>(cta_count()) * cta_threads() * 128)
    prefetch(static_cast<const u8*>(table) + at);
}

}  // namespace

XSTAGE_KERNEL(replay, Parameters, MOST_THREADS) {
  bring_near(parameters.ops, parameters.ops_bytes);
  bring_near(parameters.shares, parameters.shares_bytes);
  bring_near(parameters.entries, parameters.entries_bytes);
  bring_near(parameters.runs, parameters.runs_bytes);
  run_lanes<Replay>(parameters);
}
