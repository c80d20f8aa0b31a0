// Barriers of a CTA and collectives of a warp behind emulation.h, the Tensor Core among them.

#include "emulation_scheduler.h"

namespace xstage::emulation {

namespace {

// --- barriers

void complete(Barrier& barrier) {
  barrier.result[barrier.generation & 1] = barrier.vote;
  ++barrier.generation;
  barrier.arrived = 0;
  barrier.vote = true;
  for (Fiber* fiber = barrier.waiting; fiber;) {
    Fiber* next = fiber->next;
    make_runnable(fiber);
    fiber = next;
  }
  barrier.waiting = nullptr;
}

bool meet_at(u32 id, u32 expected, bool wait, bool vote) {
  Fiber* self = s.current;
  if (id >= N_BARRIERS) fault("barrier %u does not exist (allowed: 0 to 15)", id);
  Barrier& barrier = self->cta->barriers[id];
  if (barrier.arrived && barrier.expected != expected && id)
    fault("barrier %u: called for %u threads, and for %u by GPU %u CTA %u thread %u", id, barrier.expected, expected,
          self->place.gpu, self->place.cta, self->place.thread);
  if (expected == 0 || expected % WARP) fault("barrier %u: %u threads are no whole warps", id, expected);
  u32 side = barrier.generation & 1;
  tell_release(&barrier.token[side]);
  barrier.expected = expected;
  barrier.vote = barrier.vote && vote;
  ++barrier.arrived;
  bool last = barrier.arrived == (id ? expected : self->cta->alive);
  if (last) complete(barrier);
  if (!wait) return true;
  if (!last) {
    self->next = barrier.waiting;
    barrier.waiting = self;
    self->at = id;
    block(State::BARRIER);
  }
  tell_acquire(&barrier.token[side]);
  return barrier.result[side];
}

// --- warp collectives

using Combine = void (*)(Meeting&);

char* meet_lanes(const char* what, u32 mask, void* argument, Combine combine) {
  Fiber* self = s.current;
  u32 lane = self->place.thread % WARP;
  Warp& warp = self->cta->warps[self->place.thread / WARP];
  if (!(mask >> lane & 1)) fault("%s: lane %u is not in its own mask %08x", what, lane, mask);
  Meeting* found = nullptr;
  for (Meeting& meeting : warp.meetings) {
    if (!meeting.mask && !found) found = &meeting;
    if (!(meeting.mask >> lane & 1)) continue;
    if (meeting.what != what || meeting.mask != mask)
      fault("lanes of a warp come to different collectives: GPU %u CTA %u thread %u to %s (mask %08x), others to %s (mask %08x)",
            self->place.gpu, self->place.cta, self->place.thread, what, mask, meeting.what, meeting.mask);
    found = &meeting;
    break;
  }
  if (!found) fault("%s: more than %u groups of lanes of one warp wait", what, N_MEETINGS);
  if (!found->mask) {
    found->mask = mask;
    found->arrived = 0;
    found->what = what;
    found->token = &warp.tokens[warp.n_met++ % sizeof warp.tokens];
  }
  char* token = found->token;
  if (!combine) tell_release(token);
  found->arrived |= 1u << lane;
  found->argument[lane] = argument;
  found->fiber[lane] = self;
  if (found->arrived != mask) {
    self->what = what;
    block(State::MEETING);
  } else {
    if (combine) combine(*found);
    for (u32 i = 0; i < WARP; ++i)
      if ((mask >> i & 1) && i != lane) make_runnable(found->fiber[i]);
    found->mask = 0;
  }
  if (!combine) tell_acquire(token);
  return token;
}

template <typename Argument>
Argument& argument(Meeting& meeting, u32 lane) {
  return *static_cast<Argument*>(meeting.argument[lane]);
}

struct Shuffled {
  u32 value, source, result;
};

struct Rows {
  const u32* row;
  u32* result;
  bool transposed;
};

struct Product {
  float* d;
  const u32 *a, *b;
};

u32 half(u32 word, u32 which) { return word >> (16 * which) & 0xffffu; }

float bf16_value(u32 word, u32 which) {
  u32 bits = half(word, which) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

void multiply(Meeting& meeting) {
  float a[16][16], b[16][8];
  for (u32 t = 0; t < WARP; ++t) {
    const Product& p = argument<Product>(meeting, t);
    u32 g = t / 4, c = 2 * (t % 4);
    for (u32 i = 0; i < 2; ++i) {
      a[g][c + i] = bf16_value(p.a[0], i);
      a[g + 8][c + i] = bf16_value(p.a[1], i);
      a[g][c + 8 + i] = bf16_value(p.a[2], i);
      a[g + 8][c + 8 + i] = bf16_value(p.a[3], i);
      b[c + i][g] = bf16_value(p.b[0], i);
      b[c + 8 + i][g] = bf16_value(p.b[1], i);
    }
  }
  for (u32 t = 0; t < WARP; ++t) {
    float* d = argument<Product>(meeting, t).d;
    for (u32 i = 0; i < 4; ++i) {
      u32 row = t / 4 + 8 * (i / 2), column = 2 * (t % 4) + i % 2;
      float sum = 0;
      for (u32 k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      d[i] += sum;
    }
  }
}

void exchange(Meeting& meeting) {
  for (u32 t = 0; t < WARP; ++t) {
    Rows& mine = argument<Rows>(meeting, t);
    for (u32 j = 0; j < 4; ++j) {
      if (!mine.transposed) {
        mine.result[j] = argument<Rows>(meeting, 8 * j + t / 4).row[t % 4];
        continue;
      }
      u32 word = 0;
      for (u32 i = 0; i < 2; ++i)
        word |= half(argument<Rows>(meeting, 8 * j + 2 * (t % 4) + i).row[t / 4 / 2], t / 4 % 2) << (16 * i);
      mine.result[j] = word;
    }
  }
}

}  // namespace

void sync_with_leavers(Cta* cta) {
  Barrier& barrier = cta->barriers[0];
  if (barrier.arrived && barrier.arrived == cta->alive) complete(barrier);
}

void sync_warp(u32 mask) { meet_lanes("sync_warp", mask, nullptr, nullptr); }

u32 ballot(bool vote, u32 mask) {
  Shuffled mine{vote, 0, 0};
  meet_lanes("ballot", mask, &mine, [](Meeting& meeting) {
    u32 votes = 0;
    for (u32 i = 0; i < WARP; ++i)
      if (meeting.mask >> i & 1) votes |= argument<Shuffled>(meeting, i).value << i;
    for (u32 i = 0; i < WARP; ++i)
      if (meeting.mask >> i & 1) argument<Shuffled>(meeting, i).result = votes;
  });
  return mine.result;
}

u32 shuffle(u32 value, u32 source, u32 mask) {
  Shuffled mine{value, source % WARP, 0};
  if (!(mask >> mine.source & 1)) fault("shuffle: reads lane %u, which is not in the mask %08x", mine.source, mask);
  meet_lanes("shuffle", mask, &mine, [](Meeting& meeting) {
    for (u32 i = 0; i < WARP; ++i)
      if (meeting.mask >> i & 1) {
        Shuffled& reader = argument<Shuffled>(meeting, i);
        reader.result = argument<Shuffled>(meeting, reader.source).value;
      }
  });
  return mine.result;
}

void sync_cta() { meet_at(0, s.current->place.n_threads, true, true); }
bool sync_cta_all(bool vote) { return meet_at(0, s.current->place.n_threads, true, vote); }
void sync_named(u32 id, u32 threads, bool wait) {
  if (id == 0) fault("barrier 0 is sync_cta's (allowed: 1 to 15)");
  meet_at(id, threads, wait, true);
}

u32 exchange_row(const u32 (&row)[4], u32 (&r)[4], bool transposed) {
  Rows mine{row, r, transposed};
  meet_lanes(transposed ? "ldmatrix.trans" : "ldmatrix", 0xffffffffu, &mine, exchange);
  return 0;
}

void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  Product mine{d, a, b};
  meet_lanes("mma", 0xffffffffu, &mine, multiply);
}

}  // namespace xstage::emulation
