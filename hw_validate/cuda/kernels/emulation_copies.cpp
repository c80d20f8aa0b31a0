// Copies that run by themselves, and mbarriers, behind emulation.h.

#include "emulation_scheduler.h"

namespace xstage::emulation {

namespace {

// --- mbarriers: one word of arrivals to come, arrivals a phase, bytes to come, parity

constexpr u64 MBARRIER_MARK = 0x5a5;
constexpr u32 MOST_ARRIVALS = (1 << 14) - 1;
constexpr long long NO_BYTES = 1 << 23;

struct Phases {
  u64* word;
  long long bytes;
  u32 pending, count, parity;

  explicit Phases(u64* address) : word(address) {
    u64 value = *const_cast<volatile u64*>(word);
    if (value >> 53 != MBARRIER_MARK) fault("an mbarrier at %s that was never initialised", describe(word).c_str());
    bytes = static_cast<long long>(value & 0xffffff) - NO_BYTES;
    pending = value >> 24 & 0x3fff;
    count = value >> 38 & 0x3fff;
    parity = value >> 52 & 1;
  }
  Phases(u64* address, u32 arrivals) : word(address), bytes(0), pending(arrivals), count(arrivals), parity(0) {}
  void keep() {
    *const_cast<volatile u64*>(word) = static_cast<u64>(bytes + NO_BYTES) | static_cast<u64>(pending) << 24 |
                                       static_cast<u64>(count) << 38 | static_cast<u64>(parity) << 52 |
                                       MBARRIER_MARK << 53;
  }
  char* token(u32 side) { return reinterpret_cast<char*>(word) + side; }
};

void arrive(u64* barrier, u32 arrivals, long long added_bytes) {
  Phases phases(barrier);
  if (arrivals > phases.pending) fault("more arrivals at the mbarrier %s than it expects (%u)", describe(barrier).c_str(), phases.count);
  tell_release(phases.token(phases.parity));
  phases.pending -= arrivals;
  phases.bytes += added_bytes;
  if (phases.pending == 0 && phases.bytes == 0) {
    phases.parity ^= 1;
    phases.pending = phases.count;
  }
  phases.keep();
  after_write();
}

// --- copies

void raw_copy(void* to, const void* from, std::size_t bytes) {  // no call of memcpy, which sanitisers would look into
  auto* target = static_cast<volatile u32*>(to);
  auto* source = static_cast<const volatile u32*>(from);
  for (std::size_t i = 0; i < bytes / 4; ++i) target[i] = source[i];
}

Copy* new_copy(CopyList& list, Copy::Kind kind, void* to, const void* from, u32 bytes, u64* barrier) {
  Fiber* self = s.current;
  if (bytes % 16) fault("a copy of %u bytes (allowed: multiples of 16)", bytes);
  if (bytes > BIGGEST_COPY) fault("a copy of %u bytes (allowed: up to %zu)", bytes, BIGGEST_COPY);
  if (kind != Copy::ARRIVE) {
    check_aligned(to, 16, "the target of a copy");
    check_aligned(from, 16, "the source of a copy");
  }
  acquire_as(list.engine, &self->cta->proxy_token);
  Copy* copy = s.free_copies;
  if (!copy) fault("more than %zu copies are under way", s.pool.size());
  s.free_copies = copy->next;
  *copy = Copy{kind, to, from, bytes, list.committed, barrier, false, nullptr, nullptr, 0};
  tell_release(&copy->token);
  list.append(copy);
  if (!self->has_copies) {
    self->has_copies = true;
    s.copying.push_back(self);
  }
  return copy;
}

void in_shared(const void* address, u32 bytes, const char* what) {
  const Cta* cta = s.current->cta;
  const u8* first = static_cast<const u8*>(address);
  if (first < cta->shared || first + bytes > cta->shared + cta->shared_bytes)
    fault("%s: %u bytes that do not lie in the shared memory of the CTA", what, bytes);
}

void retire(CopyList& list) {
  Copy* copy = list.first;
  list.first = copy->next;
  if (!list.first) list.last = nullptr;
  copy->next = s.free_copies;
  s.free_copies = copy;
}

void read_copy(Copy* copy) {
  tell_read(copy->from, copy->bytes);
  if (s.kept_next + copy->bytes > s.kept.size()) s.kept_next = 0;
  copy->kept = s.kept.data() + s.kept_next;
  s.kept_next += copy->bytes;
  raw_copy(copy->kept, copy->from, copy->bytes);
  copy->was_read = true;
}

void write_copy(Copy* copy) {
  tell_acquire(&copy->token);
  tell_write(copy->to, copy->bytes);
  raw_copy(copy->to, copy->kept, copy->bytes);
}

void wait_for_copies(CopyList& list, u32 newest, bool only_read, const char* what) {
  Fiber* self = s.current;
  while (list.under_way(only_read) > newest) {
    self->what = what;
    self->at = newest;
    block(State::COPY);
  }
  for (u32 group = list.committed - std::min(list.committed, N_TOKENS - 1); group + newest < list.committed; ++group)
    tell_acquire(only_read ? &list.read_token[group % N_TOKENS] : &list.done_token[group % N_TOKENS]);
}

}  // namespace

// One step of one of the copy engines of a thread, in the identity of that engine.
void step_copies(Fiber* owner) {
  u32 which = draw() % 3;
  while (!owner->lists[which]->first) which = (which + 1) % 3;
  CopyList& list = *owner->lists[which];
  Copy* copy = list.first;
  become(list.engine);
  Copy* unread = copy;
  while (unread && unread->was_read) unread = unread->next;
  if (copy->kind == Copy::ARRIVE) {
    arrive(copy->barrier, 1, 0);
    retire(list);
  } else if (copy->kind == Copy::ASYNC) {
    tell_acquire(&copy->token);
    read_copy(copy);
    write_copy(copy);
    tell_release(&list.done_token[copy->group % N_TOKENS]);
    retire(list);
  } else if (unread && (unread == copy || (draw() & 1))) {
    read_copy(unread);
    if (unread->kind == Copy::STORE) tell_release(&list.read_token[unread->group % N_TOKENS]);
  } else {
    write_copy(copy);
    if (copy->kind == Copy::LOAD)
      arrive(copy->barrier, 0, -static_cast<long long>(copy->bytes));
    else
      tell_release(&list.done_token[copy->group % N_TOKENS]);
    retire(list);
  }
  become(s.main_identity);
  if (owner->state == State::COPY) make_runnable(owner);  // it looks again
  if (!owner->async.first && !owner->loads.first && !owner->stores.first) {
    owner->has_copies = false;
    s.copying.erase(std::find(s.copying.begin(), s.copying.end(), owner));
  }
}

void cp_async(void* shared, const void* global, u32 bytes) {
  in_shared(shared, bytes, "cp.async");
  new_copy(s.current->async, Copy::ASYNC, shared, global, bytes, nullptr);
}

void cp_async_commit() { ++s.current->async.committed; }
void cp_async_wait(u32 newest) { wait_for_copies(s.current->async, newest, false, "cp_async_wait"); }
void cp_async_arrive(u64* barrier) { new_copy(s.current->async, Copy::ARRIVE, nullptr, nullptr, 0, barrier); }

void mbarrier_init(u64* barrier, u32 arrivals) {
  check_aligned(barrier, 8, "an mbarrier");
  in_shared(barrier, 8, "an mbarrier");
  if (arrivals < 1 || arrivals > MOST_ARRIVALS) fault("an mbarrier of %u arrivals (allowed: 1 to %u)", arrivals, MOST_ARRIVALS);
  Phases(barrier, arrivals).keep();
}

void mbarrier_arrive(u64* barrier, u32 expected_bytes) {
  maybe_yield();
  arrive(barrier, 1, expected_bytes);
}

bool mbarrier_test(u64* barrier, u32 parity) {
  maybe_yield();
  Phases phases(barrier);
  if (phases.parity == (parity & 1)) return false;
  tell_acquire(phases.token(parity & 1));
  return true;
}

void fence_proxy_async() { tell_release(&s.current->cta->proxy_token); }

void bulk_load(void* shared, const void* global, u32 bytes, u64* barrier) {
  in_shared(shared, bytes, "a bulk load");
  new_copy(s.current->loads, Copy::LOAD, shared, global, bytes, barrier);
}

void bulk_store(void* global, const void* shared, u32 bytes) {
  in_shared(shared, bytes, "a bulk store");
  new_copy(s.current->stores, Copy::STORE, global, shared, bytes, nullptr);
}

void bulk_commit() { ++s.current->stores.committed; }
void bulk_wait(u32 newest, bool only_read) {
  wait_for_copies(s.current->stores, newest, only_read, only_read ? "bulk_wait_read" : "bulk_wait");
}

}  // namespace xstage::emulation
