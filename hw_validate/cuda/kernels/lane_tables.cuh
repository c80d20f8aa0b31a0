// What lanes work on: the tables of a lowered Program, shared memory of a CTA, and what a thread knows of its lane. Part of
// lanes.cuh. lower.py writes the tables and replay_job.py reads records and times; their dtypes and the structs are the same.
// Parameters of a kernel that runs lanes begin with LaneTables.
#pragma once

#include "device.cuh"

namespace xstage {

enum Kind : u32 { COMPUTE, STORE, LOAD, SIGNAL, WAIT, ACQUIRE, RELEASE };
enum OpFlag : u32 { SYSTEM_WIDE = 1, OWN_LOADS = 2, ADDS = 4 };  // OWN_LOADS: a WAIT for the first `count` loads of its lane

constexpr u32 NONE = 0xffffffffu, BROKEN = 0xfffffffeu;
constexpr u32 COUNTER_WORDS = 8;  // counters lie in sectors of their own
constexpr u32 WINDOW_OPS = 32, MOST_LANES = 15, MAIL_SLOTS = 128, MOST_LOADS = 16;

struct Op {
  u8 kind, flags;
  u16 n_shares;
  i32 counter;
  u32 count;   // STORE: stride of its counters by GPU
  u32 target;  // STORE: first share; LOAD: owner
  u32 bytes;
  u32 home;    // GPU of the counter
  u64 ticks;
};

struct Share {
  u32 gpu, bytes;
};

struct Entry {  // a task in its queue
  u32 task, first_run;
  i32 guard_counter[2];
  u32 guard_count[2];
  u32 guard_is_system_wide, padding;
};

struct Run {
  u32 first_op, n_ops;
};

struct Queue {
  u32 first, n_entries, is_shared, cursor;
};

struct Step {
  i32 queue, otherwise;
  u32 times, padding;
};

struct Group {
  u32 gpu, first_step, n_prefix, n_repeat, ahead, n_lanes, n_slots, first_word, is_in_shared, first_taken;
};

struct Lane {
  u32 number, group, seat, window, first_warp, n_warps;
  u64 store_first, load_first, start_ticks;
};

struct Cta {
  u32 gpu, first_lane, n_lanes, first_word, n_words, log_records;
};

struct Record {
  u32 lane, task, op, start, end;  // ticks since the start edge
};

struct Times {
  u64 global_start, clock_start, global_end, clock_end;
  u32 sm, status, spilled;
  u32 post_ticks;  // that lanes stood before full post boxes, all lanes together
};

struct LaneTables {
  const Op* ops;
  const Share* shares;
  const Entry* entries;
  const Run* runs;
  const Queue* queues;
  const Step* steps;
  const Group* groups;
  const Lane* lanes;
  const Cta* ctas;
  u32* const* counters;  // by GPU
  u32* cursors;          // of shared queues of this GPU
  u32* taken;            // lists of entries taken, by group
  u32* group_words;      // initial state of groups; those that span CTAs live here
  Record* records;
  u32* n_records;
  Times* times;
  u32* barrier;          // of all CTAs of all GPUs
  u64* start_edge;       // on the global timer of this GPU
  u32* abort;
  u64 patience;          // ticks
  u64 lead_ns;
  u32 first_cta, n_ctas;
};

static_assert(sizeof(Op) == 32 && sizeof(Entry) == 32 && sizeof(Group) == 40 && sizeof(Lane) == 48, "as in lane_tables.py");
static_assert(sizeof(Record) == 20 && sizeof(Times) == 48 && sizeof(LaneTables) == 176, "as in replay_job.py");

// --- shared memory of a CTA

struct Mail {  // an op whose counters are to be bumped
  u32 op : 31, is_system_wide : 1;
};

struct alignas(16) LaneBlock {
  Op ops[2][WINDOW_OPS];
  Mail mail[MAIL_SLOTS];
  MBarrier arrived[MOST_LOADS];
  u32* words;  // of the group
  u32 window, mail_written, mail_read, n_loads, n_arrived, is_closed, entry, is_broken, n_logged, post_ticks;
};

static_assert(sizeof(Mail) == 4 && sizeof(LaneBlock) == 2736 && sizeof(Edge) == 16, "as in lane_tables.py");

// The parts of shared memory, in order.
XSTAGE_DEVICE Edge* start_edge() { return reinterpret_cast<Edge*>(shared_memory()); }
XSTAGE_DEVICE LaneBlock* lane_blocks() { return reinterpret_cast<LaneBlock*>(shared_memory() + sizeof(Edge)); }
XSTAGE_DEVICE u8* load_targets(const Cta& cta) { return reinterpret_cast<u8*>(lane_blocks() + cta.n_lanes); }  // 16 bytes a thread
XSTAGE_DEVICE u32* group_words(const Cta& cta) { return reinterpret_cast<u32*>(load_targets(cta) + cta_threads() * 16); }
XSTAGE_DEVICE Record* cta_log(const Cta& cta) { return reinterpret_cast<Record*>(group_words(cta) + (cta.n_words + 3) / 4 * 4); }

// How many records the lanes of the CTA have noted; the first lane's block holds the word.
XSTAGE_DEVICE u32* n_logged() { return &lane_blocks()->n_logged; }

XSTAGE_DEVICE u32* counter_word(u32* counters, i32 number) { return counters + static_cast<u64>(number) * COUNTER_WORDS; }

// A thread's place in its lane.
struct LaneThread {
  u32 slot, thread, n_threads;

  XSTAGE_DEVICE LaneThread(const Lane& lane, u32 slot)
      : slot(slot), thread(thread_index() - lane.first_warp * WARP), n_threads(lane.n_warps * WARP) {}

  XSTAGE_DEVICE bool is_leader() const { return thread == 0; }

  XSTAGE_DEVICE void meet() const {
    if (n_threads == WARP)
      sync_warp();
    else
      sync_named(1 + slot, n_threads);
  }
};

// What a thread knows of its lane, read again whenever it is asked for: registers are left to the Work. Every other class in
// its place answers the same questions.
template <typename Parameters>
struct RereadLane : LaneThread {
  const Parameters& p;

  XSTAGE_DEVICE RereadLane(const Parameters& p, const Lane& lane, u32 slot) : LaneThread(lane, slot), p(p) {}

  XSTAGE_DEVICE const Cta& cta() const { return p.ctas[p.first_cta + cta_index()]; }
  XSTAGE_DEVICE const Lane& lane() const { return p.lanes[cta().first_lane + slot]; }
  XSTAGE_DEVICE const Group& group() const { return p.groups[lane().group]; }
  XSTAGE_DEVICE bool is_group_in_shared() const { return true; }  // fused_lower.py refuses others
  XSTAGE_DEVICE u32 gpu() const { return cta().gpu; }
  XSTAGE_DEVICE u32 number() const { return lane().number; }
  XSTAGE_DEVICE u32 log_records() const { return cta().log_records; }
  XSTAGE_DEVICE Record* log() const { return cta_log(cta()); }
  XSTAGE_DEVICE LaneBlock& block() const { return lane_blocks()[slot]; }
  XSTAGE_DEVICE u32* words() const { return block().words; }
  XSTAGE_DEVICE Watch watch() const { return Watch{p.abort, p.patience}; }
  XSTAGE_DEVICE u64 start() const { return start_edge()->clock; }
  XSTAGE_DEVICE u32* counter(u32 home, i32 number) const { return counter_word(p.counters[home], number); }
};

}  // namespace xstage
