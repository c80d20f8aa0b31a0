// Works through a table of microbenchmarks inside one launch: one CTA an SM, the same table on every GPU that takes part.
// experiments.py says what each kind of row does and which times it notes; it has the same struct as `Row` of burst_table.cuh.
//
// Every row begins with a barrier of all CTAs and GPUs, a rest in which nobody touches memory, and a common start on a tick
// of the global timer. Times are ticks of the SM's own clock since its row began, kept in shared memory and written out when
// the row is over. Stores go to addresses that this table has not stored to before, until a CTA's region is used up; those of
// rows with SAME go to its beginning.
#include "burst_table.cuh"

// --- stores

template <u32 WIDTH>
XSTAGE_DEVICE void store(u8* to, Vector16 v) {
  if constexpr (WIDTH == 4) remote_store(reinterpret_cast<u32*>(to), v.x);
  if constexpr (WIDTH == 8) remote_store(reinterpret_cast<u64*>(to), static_cast<u64>(v.y) << 32 | v.x);
  if constexpr (WIDTH == 16) remote_store16(to, v);
  if constexpr (WIDTH == 32) remote_store32(to, v, v);
}

// This thread's share of a burst; each warp instruction covers whole lines. Where its last store went, or null.
template <u32 WIDTH>
XSTAGE_DEVICE u8* store_share(u8* to, u64 bytes, u32 warps, Vector16 v) {
  u64 step = static_cast<u64>(warps) * WARP * WIDTH;
  u64 at = static_cast<u64>(thread_index()) * WIDTH;
  if (at >= bytes) return nullptr;
#pragma unroll 4
  for (; at < bytes; at += step) store<WIDTH>(to + at, v);
  return to + (at - step) / 16 * 16;
}

XSTAGE_DEVICE u8* store_burst(const Row& row, u8* to, u64 bytes, Vector16 v) {
  u32 warps = static_cast<u32>(row.warps);
  switch (row.width) {
    case 4: return store_share<4>(to, bytes, warps, v);
    case 8: return store_share<8>(to, bytes, warps, v);
    case 32: return store_share<32>(to, bytes, warps, v);
    default: return store_share<16>(to, bytes, warps, v);
  }
}

// Noise, so that nothing on the way can make less of it.
XSTAGE_DEVICE Vector16 payload(const Row& row, u32 number) {
  u32 seed = (number * 0x9e3779b9u) ^ (cta_index() * 0x85ebca6bu) ^ (thread_index() * 0xc2b2ae35u);
  Vector16 v;
  v.x = (seed ^ seed >> 15) * 0x2c1b3c6du;
  v.y = (v.x ^ v.x >> 12) * 0x297a2d39u;
  v.z = (v.y ^ v.y >> 15) * 0x9e3779b9u;
  v.w = v.z ^ v.x;
  if (row.flags & ZEROS) v.x = v.y = v.z = v.w = 0;
  return v;
}

// Load `from` and do not go on before it has come.
XSTAGE_DEVICE void load_back(Cta& cta, const u8* from) {
  Vector16 back = remote_load16(from);
  if (back.x == 0x5bd1e995u && back.y == 0x7ed55d16u) cta.shared->sink = back;
}

// Ask the partner CTA on the receiving GPU whether what was stored has arrived; thread 0.
XSTAGE_DEVICE void echo(Cta& cta, const Row& row) {
  store_release<SYSTEM>(cta.cta_word(cta.p.peer_words[cta.target(row)], cta_index(), ASKED), ++cta.asked);
  wait_acquire<SYSTEM>(cta.mine(ANSWERED), cta.asked, cta.p.watch);
}

// The partner of an echo or a ping-pong; it tells its own global timer along with every answer.
XSTAGE_DEVICE void answer(Cta& cta, const Row& row, u32 sender) {
  if (thread_index() != 0) return;
  u32* there = cta.p.peer_words[sender];
  for (i32 burst = 0; burst < row.bursts; ++burst) {
    if (!wait_acquire<SYSTEM>(cta.mine(ASKED), cta.answered + 1, cta.p.watch)) return;
    cta.answered = load_relaxed<SYSTEM>(cta.mine(ASKED));  // others were asked in between: it counts up by more than one
    u64 now = global_ns();
    store_relaxed<SYSTEM>(cta.cta_word(there, cta_index(), THEIR_LOW), static_cast<u32>(now));
    store_relaxed<SYSTEM>(cta.cta_word(there, cta_index(), THEIR_HIGH), static_cast<u32>(now >> 32));
    store_release<SYSTEM>(cta.cta_word(there, cta_index(), ANSWERED), cta.answered);
  }
}

// Loads by the warps that do not store, until the others have issued: far from where these store.
XSTAGE_DEVICE void load_meanwhile(Cta& cta, const Row& row) {
  constexpr u32 AT_ONCE = 4;
  const u8* region = cta.region(row);
  u32 room = static_cast<u32>(cta.p.region_bytes), at = 0, loads = 0, needed = static_cast<u32>(row.warps);
  u32 from = static_cast<u32>(row.flags & LOCAL ? cta.cursor_own : cta.cursor_far) + room / 2;
  Spin spin(cta.p.watch);
  while (load_relaxed<CTA>(&cta.shared->others_stop) < needed) {
    Vector16 v[AT_ONCE];
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; ++i)
      v[i] = remote_load16(region + (from + (at + i * cta_threads() + thread_index()) * 16) % room);
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; ++i)
      if (v[i].x == 0x5bd1e995u && v[i].y == 0x7ed55d16u) cta.shared->sink = v[i];
    at = (at + AT_ONCE * cta_threads()) * 16 < room / 4 ? at + AT_ONCE * cta_threads() : 0;
    loads += AT_ONCE;
    if (!spin.again(&cta.shared->others_stop, needed)) return;
  }
  if (lane_index() == 0) add_relaxed<CTA>(&cta.shared->others_did, loads);
}

// Releases by one thread of a warp that does not store, one after the other, until the others have issued.
XSTAGE_DEVICE void fence_meanwhile(Cta& cta, const Row& row) {
  u32 fences = 0, needed = static_cast<u32>(row.warps);
  Spin spin(cta.p.watch);
  while (load_relaxed<CTA>(&cta.shared->others_stop) < needed) {
    fence_release<SYSTEM>();
    ++fences;
    if (!spin.again(&cta.shared->others_stop, needed)) return;
  }
  add_relaxed<CTA>(&cta.shared->others_did, fences);
}

// One burst, all threads of the CTA; notes its times at marks[at...].
XSTAGE_DEVICE void one_store_burst(Cta& cta, const Row& row, u64 bytes, Vector16 v, u32 at) {
  Shared* shared = cta.shared;
  u8* to = cta.place(row, bytes);
  if (thread_index() == 0) {
    store_relaxed<CTA>(&shared->others_stop, 0);
    store_relaxed<CTA>(&shared->others_did, 0);
  }
  sync_cta();
  if (thread_index() == 0) shared->burst_start = clock_ticks();
  u8* last = nullptr;
  bool stores = warp_index() < static_cast<u32>(row.warps);
  if (stores) {
    last = store_burst(row, to, bytes, v);
    if (lane_index() == 0) {
      shared->ends[warp_index()] = clock_ticks();
      if (row.flags & (LOADS | FENCES)) add_relaxed<CTA>(&shared->others_stop, 1);
    }
  } else if (row.flags & LOADS) {
    load_meanwhile(cta, row);
  } else if (row.flags & FENCES && thread_index() == static_cast<u32>(row.warps) * WARP) {
    fence_meanwhile(cta, row);
  }
  sync_cta();
  u32 next = at;
  if (thread_index() == 0) {
    u64 end = shared->burst_start;
    for (i32 warp = 0; warp < row.warps; ++warp) end = shared->ends[warp] > end ? shared->ends[warp] : end;
    cta.note(next++, static_cast<u32>(shared->burst_start - shared->row_start));
    cta.note(next++, static_cast<u32>(end - shared->row_start));
    if (row.flags & (LOADS | FENCES)) cta.note(next++, load_relaxed<CTA>(&shared->others_did));
    if (row.flags & FENCE) {
      if (row.flags & IN_SM)
        store_release<CTA>(&shared->released, 1);
      else
        signal_release<SYSTEM>(cta.mine(SCRATCH), 1);
      cta.note(next++, cta.since_start());
    }
    if (row.flags & ECHO) {
      echo(cta, row);
      cta.note(next++, cta.since_start());
    }
  }
  if (row.flags & BACK) {
    if (last != nullptr && lane_index() == 0) load_back(cta, last);  // one of each warp: loading all would take long itself
    sync_cta();
    if (thread_index() == 0) cta.note(next++, cta.since_start());
  }
}

XSTAGE_DEVICE void store_row(Cta& cta, const Row& row, Vector16 v) {
  for (i32 burst = 0; burst < row.bursts; ++burst) {
    if (burst > 0) spin_until(clock_ticks() + static_cast<u64>(row.gap_cycles));
    one_store_burst(cta, row, static_cast<u64>(row.bytes), v, static_cast<u32>(burst * row.marks));
  }
}

// Bulk stores by one thread: issued, source read, done, loaded back.
XSTAGE_DEVICE void bulk_row(Cta& cta, const Row& row, Vector16 v) {
  for (u32 at = thread_index() * 16; at < cta.p.bulk_bytes; at += cta_threads() * 16)
    *reinterpret_cast<Vector16*>(cta.source + at) = v;
  fence_proxy_async();
  sync_cta();
  if (thread_index() != 0) return;
  u32 bytes = static_cast<u32>(row.bytes), chunk = static_cast<u32>(row.chunk);
  u32 places = (cta.p.bulk_bytes - chunk) / 16 + 1;  // where in the source a chunk may begin
  for (i32 burst = 0; burst < row.bursts; ++burst) {
    u8* to = cta.place(row, bytes);
    u32 at = static_cast<u32>(burst * row.marks);
    if (burst > 0) spin_until(clock_ticks() + static_cast<u64>(row.gap_cycles));
    cta.note(at, cta.since_start());
    u32 last = 0;
    for (u32 offset = 0; offset < bytes; offset += chunk) {
      u32 size = bytes - offset < chunk ? bytes - offset : chunk;
      remote_store_bulk(to + offset, cta.source + offset / 16 % places * 16, size);
      last = offset + size - 16;
    }
    bulk_commit();
    cta.note(at + 1, cta.since_start());
    bulk_wait_read<0>();
    cta.note(at + 2, cta.since_start());
    bulk_wait<0>();
    cta.note(at + 3, cta.since_start());
    load_back(cta, to + last);
    cta.note(at + 4, cta.since_start());
  }
}

// --- neighbours

// Bursts until the light SM is done.
XSTAGE_DEVICE void hog_row(Cta& cta, const Row& row, Vector16 v) {
  u32 needed = cta.light_done + 1;
  for (u32 burst = 0; burst < MOST_HOG_BURSTS; ++burst) {
    u32& stop = cta.shared->hogs_stop[burst % 2];  // two, so that the next is not written while this one is read
    if (thread_index() == 0)
      stop = reached(load_relaxed<GPU>(cta.word(LIGHT_DONE)), needed) ||
             load_relaxed<SYSTEM>(cta.p.watch.abort) != GO_ON;
    sync_cta();
    if (stop) break;
    store_burst(row, cta.place(row, static_cast<u64>(row.bytes)), static_cast<u64>(row.bytes), v);
  }
}

XSTAGE_DEVICE void light_row(Cta& cta, const Row& row, Vector16 v) {
  for (i32 burst = 0; burst < row.bursts; ++burst) {
    spin_until(clock_ticks() + static_cast<u64>(row.gap_cycles));
    one_store_burst(cta, row, static_cast<u64>(row.other_bytes), v, static_cast<u32>(burst * row.marks));
  }
  sync_cta();
  if (thread_index() == 0) signal_release<GPU>(cta.word(LIGHT_DONE), 1);
}

// Compute until all producers are done.
XSTAGE_DEVICE void busy_row(Cta& cta, u32 needed) {
  float a = static_cast<float>(thread_index()), b = 1.0001f, c = 0.5f, d = a;
  Spin spin(cta.p.watch);
  while (!reached(load_relaxed<GPU>(cta.word(DONE)), needed)) {
#pragma unroll 1
    for (i32 i = 0; i < 64; ++i) {
#pragma unroll
      for (i32 j = 0; j < 16; ++j) {
        a = a * b + c;
        d = d * b + a;
      }
    }
    if (!spin.again(cta.word(DONE), needed)) break;
  }
  if (a == 1.0f && d == 2.0f) cta.shared->sink.x = 1;
}

// --- loads, tickets, flags, barriers, clocks

// Out of memory that stays in L2, or (PULL) out of places of the far memory that this table has not touched before.
XSTAGE_DEVICE void load_row(Cta& cta, const Row& row) {
  const bool is_far = row.kind == PULL;
  u32 bytes = static_cast<u32>(row.bytes), step = cta_threads() * 16;
  u32 first = is_far ? 0 : cta_index() * bytes, room = is_far ? bytes : static_cast<u32>(cta.p.feed_bytes);
  first = (first + thread_index() * 16) % room;
  for (i32 burst = 0; burst < row.bursts; ++burst) {
    const u8* from = is_far ? cta.place(row, bytes) : cta.p.feed;
    sync_cta();
    if (thread_index() == 0) cta.note(static_cast<u32>(burst * row.marks), cta.since_start());
    u32 sum = 0, place = first;
    for (u32 at = 0; at < bytes; at += 8 * step) {
      Vector16 v[8];
#pragma unroll
      for (u32 i = 0; i < 8; ++i) {
        v[i] = remote_load16(from + place);
        place += step < room - place ? step : step - room;  // a remainder would take as long as several loads
      }
#pragma unroll
      for (u32 i = 0; i < 8; ++i) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    if (sum == 0x12345679u) cta.shared->sink.y = sum;
    sync_cta();
    if (thread_index() == 0) cta.note(static_cast<u32>(burst * row.marks + 1), cta.since_start());
  }
}

XSTAGE_DEVICE void ticket_row(Cta& cta, const Row& row) {
  if (thread_index() != 0) return;
  for (i32 burst = 0; burst < row.bursts; ++burst) {
    cta.note(static_cast<u32>(burst * row.marks), cta.since_start());
    u32 ticket = fetch_add<GPU>(cta.word(TICKETS), 1);
    if (ticket == 0xffffffffu) cta.shared->sink.z = ticket;
    cta.note(static_cast<u32>(burst * row.marks + 1), cta.since_start());
  }
}

// SMs in pairs: the even one asks, the odd one answers.
XSTAGE_DEVICE void flag_row(Cta& cta, const Row& row) {
  if (thread_index() != 0) return;
  u32* partner = cta.cta_word(cta.p.words, cta_index() ^ 1, PING);
  for (i32 burst = 0; burst < row.bursts; ++burst) {
    u32 at = static_cast<u32>(burst * row.marks);
    cta.note(at, cta.since_start());
    if (cta_index() % 2 == 0) signal_release<GPU>(partner, 1);
    if (!wait_acquire<GPU>(cta.mine(PING), ++cta.pings, cta.p.watch)) return;
    if (cta_index() % 2 == 1) signal_release<GPU>(partner, 1);
    cta.note(at + 1, cta.since_start());
  }
}

XSTAGE_DEVICE void sync_row(Cta& cta, const Row& row) {
  for (i32 burst = 0; burst < row.bursts; ++burst) {
    if (thread_index() == 0) cta.note(static_cast<u32>(burst * row.marks), cta.since_start());
    grid_barrier<GPU>(cta.word(MEETINGS), cta_count(), ++cta.meetings, cta.p.watch);
    if (thread_index() == 0) cta.note(static_cast<u32>(burst * row.marks + 1), cta.since_start());
  }
}

XSTAGE_DEVICE void clock_row(Cta& cta, const Row& row) {
  if (thread_index() != 0) return;
  for (i32 burst = 0; burst < row.bursts; ++burst) {
    u64 now = spin_until_global(global_ns() + 1);
    cta.note(static_cast<u32>(burst * row.marks), cta.since_start());
    cta.note(static_cast<u32>(burst * row.marks + 1), static_cast<u32>(now));
  }
}

// Ping-pong with CTA 0 of the GPU that is the target: its global timer between two readings of this one.
XSTAGE_DEVICE void offset_row(Cta& cta, const Row& row) {
  if (thread_index() != 0) return;
  for (i32 burst = 0; burst < row.bursts; ++burst) {
    u64 before = global_ns();
    echo(cta, row);
    u64 after = global_ns();
    u32 at = static_cast<u32>(burst * row.marks);
    cta.note(at, static_cast<u32>(before));
    cta.note(at + 1, static_cast<u32>(before >> 32));
    cta.note(at + 2, load_relaxed<SYSTEM>(cta.mine(THEIR_LOW)));
    cta.note(at + 3, load_relaxed<SYSTEM>(cta.mine(THEIR_HIGH)));
    cta.note(at + 4, static_cast<u32>(after));
    cta.note(at + 5, static_cast<u32>(after >> 32));
  }
}

// What this CTA does in a row. Returns whether it noted times.
XSTAGE_DEVICE bool run_row(Cta& cta, const Row& row, u32 number) {
  bool sends = row.senders >> cta.p.rank & 1;
  bool producer = sends && static_cast<i32>(cta_index()) < row.producers;
  bool light = row.flags & LIGHT;
  Vector16 v = payload(row, number);
  if (row.kind == SYNC) {
    sync_row(cta, row);
    return producer;
  }
  if (light) {
    if (sends && cta_index() == cta_count() - 1) light_row(cta, row, v);
    else if (producer) hog_row(cta, row, v);
    if (sends) ++cta.light_done;
    return sends && cta_index() == cta_count() - 1;
  }
  if ((row.flags & ECHO) || row.kind == OFFSET) {
    u32 sender = 0;
    while (!(row.senders >> sender & 1)) ++sender;
    bool asked = cta.p.rank == cta.target_of(row, sender) && static_cast<i32>(cta_index()) < row.producers;
    if (asked) answer(cta, row, sender);
  }
  if ((row.flags & BUSY) && sends) {
    cta.done += static_cast<u32>(row.producers);
    if (!producer) busy_row(cta, cta.done);
  }
  if (!producer) return false;
  switch (row.kind) {
    case BULK: bulk_row(cta, row, v); break;
    case FEED:
    case PULL: load_row(cta, row); break;
    case TICKET: ticket_row(cta, row); break;
    case FLAG: flag_row(cta, row); break;
    case CLOCK: clock_row(cta, row); break;
    case OFFSET: offset_row(cta, row); break;
    default: store_row(cta, row, v);
  }
  sync_cta();
  if ((row.flags & BUSY) && thread_index() == 0) signal_release<GPU>(cta.word(DONE), 1);
  return true;
}

XSTAGE_DEVICE void note_tick(const Parameters& p, u32 at) {
  if (thread_index() != 0) return;
  p.cta_times[4 * cta_index() + at] = spin_until_global(global_ns() + 1);
  p.cta_times[4 * cta_index() + at + 1] = clock_ticks();
}

XSTAGE_KERNEL(bursts, Parameters, THREADS) {
  Cta cta(parameters);
  if (thread_index() == 0) parameters.cta_sm[cta_index()] = sm_index();
  note_tick(parameters, 0);
  for (u32 number = 0; number < parameters.n_rows; ++number) {
    const Row row = parameters.rows[number];  // by value: a load from the table between two times would count in them
    if (!begin_row(cta, row, number)) return;
    bool notes = run_row(cta, row, number);
    end_row(cta, row, number, row.flags & LIGHT ? 0 : cta_index(), notes);
  }
  note_tick(parameters, 2);
}
