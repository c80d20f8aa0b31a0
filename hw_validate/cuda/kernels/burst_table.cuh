// The table that bursts.cu works through: its rows, what the kernel is given, what a CTA keeps, and how a row begins and ends.
#pragma once

#include "device.cuh"

using namespace xstage;

enum Kind : i32 { STORE, BULK, FEED, TICKET, FLAG, SYNC, CLOCK, OFFSET, PULL };
enum Flags : i32 {
  LOCAL = 1, ZEROS = 2, LOADS = 4, LIGHT = 8, FENCE = 16, BACK = 32, ECHO = 64, BUSY = 128, FENCES = 256, SAME = 512,
  IN_SM = 1024
};

constexpr u32 THREADS = 256;
constexpr u32 MOST_RANKS = 8;
constexpr u32 MOST_HOG_BURSTS = 20000;

struct Row {
  i32 kind, config, round, producers, bursts, marks, warps, width, flags, target;
  u32 senders;
  i32 chunk;
  i64 bytes, other_bytes, gap_cycles, rest_ns, first_mark;
  double gap_ns, gap_drains, rest_drains;  // as planned; only people read them
};

struct Parameters {
  const Row* rows;
  u32* marks;            // of this GPU, by first_mark
  u64* row_times;        // [rows][4] global timer and clock of CTA 0 when the row begins and when it has ended
  u64* cta_times;        // [CTAs][4] the same on ticks of the global timer, at the start and the end of the kernel
  u32* cta_sm;           // [CTAs]
  u8* far[MOST_RANKS];   // memory that bursts to each GPU go to; a region for each CTA of each sender
  u8* own;               // memory of this GPU for control stores; a region for each CTA
  const u8* feed;        // memory of this GPU that fits into L2
  u64 region_bytes, feed_bytes;
  u32* words;            // flags of this GPU: WORDS_APART apart, see Word
  u32* peer_words[MOST_RANKS];
  Watch watch;
  u32 n_rows, rank, n_ranks, mark_capacity, bulk_bytes, padding;
};

// Flags, each in a line of its own. What a CTA owns begins at OF_CTA. Between GPUs flags are written, never added to: PCIe
// carries no atomics to peers.
constexpr u32 WORDS_APART = 32;
enum Word : u32 { ARRIVED, EPOCH, START_LOW, START_HIGH, DONE, LIGHT_DONE, TICKETS, MEETINGS, OF_RANK, OF_CTA = 16 };
enum CtaWord : u32 { SCRATCH, ASKED, ANSWERED, PING, THEIR_LOW, THEIR_HIGH, CTA_WORDS };

struct alignas(128) Shared {
  u64 row_start, burst_start, ends[THREADS / WARP];
  u32 going, others_stop, others_did, hogs_stop[2], released;
  Vector16 sink;
};

struct Cta {
  const Parameters& p;
  Shared* shared;
  u32* marks;   // in shared memory
  u8* source;   // of bulk stores, in shared memory
  u64 cursor_far = 0, cursor_own = 0;
  u32 meetings = 0, asked = 0, answered = 0, pings = 0, done = 0, light_done = 0;

  XSTAGE_DEVICE Cta(const Parameters& parameters)
      : p(parameters), shared(reinterpret_cast<Shared*>(shared_memory())),
        marks(reinterpret_cast<u32*>(shared_memory() + sizeof(Shared))),
        source(shared_memory() + sizeof(Shared) + 4 * parameters.mark_capacity) {}

  XSTAGE_DEVICE u32* word(u32 name) const { return p.words + name * WORDS_APART; }
  XSTAGE_DEVICE u32* cta_word(u32* words, u32 cta, u32 name) const {
    return words + (OF_CTA + cta * CTA_WORDS + name) * WORDS_APART;
  }
  XSTAGE_DEVICE u32* mine(u32 name) const { return cta_word(p.words, cta_index(), name); }

  XSTAGE_DEVICE u32 since_start() const { return static_cast<u32>(clock_ticks() - shared->row_start); }
  XSTAGE_DEVICE void note(u32 at, u32 value) { marks[at] = value; }

  // A place for `bytes` new bytes (SAME: that of every row of this kind).
  XSTAGE_DEVICE u8* place(const Row& row, u64 bytes) {
    if (row.flags & SAME) return region(row);
    u64 rounded = (bytes + 511) / 512 * 512;
    u64 cursor = row.flags & LOCAL ? cursor_own : cursor_far;  // no reference to either: that would put both on a stack
    if (cursor + rounded > p.region_bytes) cursor = 0;
    if (row.flags & LOCAL)
      cursor_own = cursor + rounded;
    else
      cursor_far = cursor + rounded;
    return region(row) + cursor;
  }

  XSTAGE_DEVICE u8* region(const Row& row) const {
    if (row.flags & LOCAL) return p.own + cta_index() * p.region_bytes;
    return p.far[target(row)] + (static_cast<u64>(p.rank) * cta_count() + cta_index()) * p.region_bytes;
  }

  XSTAGE_DEVICE u32 target(const Row& row) const { return target_of(row, p.rank); }
  XSTAGE_DEVICE u32 target_of(const Row& row, u32 rank) const {
    return row.target < 0 ? (rank + 1) % p.n_ranks : static_cast<u32>(row.target);
  }
};

// --- a row begins and ends

// Barrier, rest, common start. False if the table is to be given up; the same in all threads of the CTA.
XSTAGE_DEVICE bool begin_row(Cta& cta, const Row& row, u32 number) {
  const Parameters& p = cta.p;
  sync_cta();
  if (thread_index() == 0) {
    signal_release<GPU>(cta.word(ARRIVED), 1);
    bool going = true;
    if (cta_index() == 0) {
      going = wait_acquire<GPU>(cta.word(ARRIVED), cta_count() * (number + 1), p.watch);
      for (u32 rank = 0; going && rank < p.n_ranks; ++rank)
        if (rank != p.rank) store_release<SYSTEM>(p.peer_words[rank] + (OF_RANK + p.rank) * WORDS_APART, number + 1);
      for (u32 rank = 0; going && rank < p.n_ranks; ++rank)
        if (rank != p.rank) going = wait_acquire<SYSTEM>(cta.word(OF_RANK + rank), number + 1, p.watch);
      u64 start = global_ns() + static_cast<u64>(row.rest_ns);
      store_relaxed<GPU>(cta.word(START_LOW), static_cast<u32>(start));
      store_relaxed<GPU>(cta.word(START_HIGH), static_cast<u32>(start >> 32));
      signal_release<GPU>(cta.word(EPOCH), 1);
    }
    going = going && wait_acquire<GPU>(cta.word(EPOCH), number + 1, p.watch);
    u64 high = load_relaxed<GPU>(cta.word(START_HIGH));
    u64 start = high << 32 | load_relaxed<GPU>(cta.word(START_LOW));
    u64 begun = going ? spin_until_global(start) : global_ns();
    cta.shared->row_start = clock_ticks();
    cta.shared->going = going;
    if (cta_index() == 0) {
      p.row_times[4 * number] = begun;
      p.row_times[4 * number + 1] = cta.shared->row_start;
    }
  }
  sync_cta();
  return cta.shared->going;
}

// Write out what the row noted.
XSTAGE_DEVICE void end_row(Cta& cta, const Row& row, u32 number, u32 noter, bool notes) {
  sync_cta();
  if (thread_index() == 0 && cta_index() == 0) {
    cta.p.row_times[4 * number + 2] = global_ns();
    cta.p.row_times[4 * number + 3] = clock_ticks();
  }
  u32 count = static_cast<u32>(row.bursts * row.marks);
  u32* to = cta.p.marks + row.first_mark + static_cast<u64>(noter) * count;
  if (notes)
    for (u32 i = thread_index(); i < count; i += cta_threads()) to[i] = cta.marks[i];
}
