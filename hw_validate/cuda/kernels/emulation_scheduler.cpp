// The scheduler behind emulation.h: stacks that are switched, fibers, time and spins.

#include "emulation_scheduler.h"

#include <sys/mman.h>

#include <cstdlib>

// --- switching stacks

#if defined(__x86_64__)
extern "C" void xstage_switch_stack(void** save, void* load);
asm(R"(
.text
.globl xstage_switch_stack
.type xstage_switch_stack, @function
xstage_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size xstage_switch_stack, .-xstage_switch_stack
)");
#endif

namespace xstage::emulation {

Scheduler s;

namespace {

void prepare(Context& context, u8* stack, std::size_t bytes, void (*entry)()) {
#if defined(__x86_64__)
  auto top = (reinterpret_cast<std::uintptr_t>(stack) + bytes) & ~std::uintptr_t{15};
  void** slots = reinterpret_cast<void**>(top) - 8;  // six registers, the entry, and a return address that is never used
  std::memset(slots, 0, 8 * sizeof(void*));
  slots[6] = reinterpret_cast<void*>(entry);
  context.stack_pointer = slots;
#else
  getcontext(&context.saved);
  context.saved.uc_stack.ss_sp = stack;
  context.saved.uc_stack.ss_size = bytes;
  context.saved.uc_link = nullptr;
  makecontext(&context.saved, entry, 0);
#endif
}

void switch_context(Context& from, Context& to) {
#if defined(__x86_64__)
  xstage_switch_stack(&from.stack_pointer, to.stack_pointer);
#else
  swapcontext(&from.saved, &to.saved);
#endif
}

}  // namespace

u64 draw() {  // splitmix64
  u64 z = (s.random += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

namespace {

void to_main(bool for_ever = false) {
  Fiber* self = s.current;
#ifdef XSTAGE_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(for_ever ? nullptr : &self->fake_stack, s.main_stack, s.main_stack_bytes);
#endif
  (void)for_ever;
  become(s.main_identity);
  switch_context(self->context, s.main);
#ifdef XSTAGE_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(self->fake_stack, nullptr, nullptr);
#endif
}

void resume(Fiber* fiber) {
  s.current = fiber;
#ifdef XSTAGE_ADDRESS_SANITIZER
  void* fake_stack;
  __sanitizer_start_switch_fiber(&fake_stack, fiber->stack, STACK_BYTES);
#endif
  become(fiber->identity);
  switch_context(s.main, fiber->context);
#ifdef XSTAGE_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  s.current = nullptr;
}

}  // namespace

void make_runnable(Fiber* fiber) {
  fiber->state = State::RUNNABLE;
  s.runnable.push_back(fiber);
}

void block(State state) {
  s.current->state = state;
  to_main();
}

void yield() {
  make_runnable(s.current);
  to_main();
}

void acquire_as(Identity& other, void* token) {
  if (!other) {
    become(s.main_identity);  // an identity knows what its maker knows
    other = new_identity();
  }
  become(other);
  tell_acquire(token);
  become(s.current->identity);
}

namespace {

void fiber_main() {
  Fiber* self = s.current;
#ifdef XSTAGE_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(nullptr, &s.main_stack, &s.main_stack_bytes);
#endif
  self->kernel->run(self->parameters);
  if (!s.given_up && (self->async.first || self->loads.first || self->stores.under_way(true)))
    fault("GPU %u CTA %u thread %u ends while its copies are under way: wait for them", self->place.gpu, self->place.cta,
          self->place.thread);
  tell_release(&s.done_token);
  self->state = State::DONE;
  --s.alive;
  --self->cta->alive;
  sync_with_leavers(self->cta);
  to_main(true);
}

void release_spinning() {
  for (Fiber* fiber : s.spinning) make_runnable(fiber);
  s.spinning.clear();
}

// --- the scheduler's choice

bool later(const Fiber* a, const Fiber* b) { return a->wake_tick > b->wake_tick; }

void wake_sleepers() {
  while (!s.sleeping.empty() && s.sleeping.front()->wake_tick <= s.ticks) {
    std::pop_heap(s.sleeping.begin(), s.sleeping.end(), later);
    make_runnable(s.sleeping.back());
    s.sleeping.pop_back();
  }
}

void nothing_runs(bool deadlines) {
  if (!s.sleeping.empty()) {
    s.ticks = std::max(s.ticks, s.sleeping.front()->wake_tick);
    return;
  }
  if (!deadlines || s.spinning.empty() || ++s.deadlines_passed > 1000) report_deadlock();
  s.given_up = true;
  s.ticks += u64{1} << 42;
  release_spinning();
}

void run_one(std::size_t which) {
  Fiber* fiber = s.runnable[which];
  s.runnable[which] = s.runnable.back();
  s.runnable.pop_back();
  resume(fiber);
}

void loop(bool deadlines) {
  while (s.alive || !s.copying.empty()) {
    ++s.ticks;
    wake_sleepers();
    if (!s.copying.empty()) {
      bool now = s.runnable.empty() || s.copies == s.SOON ? draw() % (s.runnable.size() + s.copying.size()) >= s.runnable.size()
                                                          : s.copies == s.LATE && draw() % 256 == 0;
      if (now) {
        step_copies(s.copying[draw() % s.copying.size()]);
        continue;
      }
    }
    if (s.runnable.empty()) {
      nothing_runs(deadlines);
      continue;
    }
    std::size_t which = draw() % s.runnable.size();
    for (int again = 0; again < 6 && s.runnable[which]->cta->slow; ++again) which = draw() % s.runnable.size();
    run_one(which);
  }
}

Kernel* kernels = nullptr;

}  // namespace

// --- what device.cuh calls

const Place& place() { return s.current->place; }

u64 clock_ticks() { return ++s.ticks + s.current->cta->clock_offset; }

u64 global_ns() { return ++s.ticks & ~u64{31}; }

u64 clock_offset() { return s.current->cta->clock_offset; }

u64 sleep_until(u64 tick) {
  u64 target = tick - s.current->cta->clock_offset;
  if (static_cast<long long>(target - s.ticks) > 0) {
    s.current->wake_tick = target;
    s.current->state = State::SLEEP;
    s.sleeping.push_back(s.current);
    std::push_heap(s.sleeping.begin(), s.sleeping.end(), later);
    to_main();
  }
  return s.ticks + s.current->cta->clock_offset;
}

u64 sleep_until_global(u64 ns) {
  u64 edge = (ns + 31) & ~u64{31};
  sleep_until(edge + s.current->cta->clock_offset);
  return s.ticks & ~u64{31};
}

void maybe_yield() {
  if ((draw() & s.yield_mask) == 0) yield();
}

void before_access(const void* word, int scope) {
  maybe_yield();
  check_aligned(word, 4, "a flag");
  const Cta* cta = s.current->cta;
  const u8* address = static_cast<const u8*>(word);
  bool is_shared = address >= cta->shared && address < cta->shared + cta->shared_bytes;
  if (scope != 0 && is_shared) fault("a scope beyond the CTA on %s", describe(word).c_str());
  if (scope == 0 && !is_shared) fault("CTA scope on %s, which other CTAs may use", describe(word).c_str());
  if (scope == 1) {
    const Region* region = region_of(word);
    if (region && region->home >= 0 && region->home != static_cast<int>(s.current->place.gpu))
      fault("GPU scope on %s, which lies on GPU %d, by GPU %u", describe(word).c_str(), region->home, s.current->place.gpu);
  }
}

void after_write() {
  ++s.epoch;
  release_spinning();
}

void fence(int scope) {
  maybe_yield();
  tell_release(&s.current->fence_token);
  acquire_as(s.current->fenced, &s.current->fence_token);
  s.current->fenced_scope = scope;
}

void release_fenced(const void* word, int scope) {
  if (s.current->fenced_scope < scope) fault("a signal at %s without a fence as wide before it", describe(word).c_str());
  become(s.current->fenced);
  tell_release(const_cast<void*>(word));
  become(s.current->identity);
}

void begin_spin() { s.current->seen_epoch = s.epoch - 1; }

void spin(const void* word, u64 needed) {
  Fiber* self = s.current;
  if (self->seen_epoch != s.epoch) {  // something was written since this one looked: look again
    self->seen_epoch = s.epoch;
    yield();
    return;
  }
  self->word = word;
  self->needed = needed;
  s.spinning.push_back(self);
  block(State::SPIN);
  self->seen_epoch = s.epoch;
}

// --- what emulation_main.cpp calls

Kernel::Kernel(const char* name_, std::size_t bytes, u32 threads, void (*run_)(const void*))
    : name(name_), parameter_bytes(bytes), max_threads(threads), run(run_), next(kernels) {
  kernels = this;
}

const Kernel* find_kernel(const std::string& name) {
  for (const Kernel* kernel = kernels; kernel; kernel = kernel->next)
    if (name == kernel->name) return kernel;
  return nullptr;
}

u64 run(const std::vector<Launch>& launches, u64 seed, bool deadlines) {
  s.random = seed * 0x2545f4914f6cdd1dull + 1;
  s.ticks = 1000;
  s.epoch = s.deadlines_passed = 0;
  s.given_up = false;
  const u32 masks[] = {1, 7, 31, 0xffff};
  s.yield_mask = masks[seed % 4];
  s.copies = seed / 4 % 3 == 0 ? s.SOON : seed / 4 % 3 == 1 ? s.LAST : s.LATE;
  s.main_identity = own_identity();

  std::size_t n_fibers = 0, n_ctas = 0;
  for (const Launch& launch : launches) n_ctas += launch.n_ctas, n_fibers += std::size_t{launch.n_ctas} * launch.n_threads;
  if (n_fibers == 0) return s.ticks;
  s.fibers = std::vector<Fiber>(n_fibers);
  s.ctas = std::vector<Cta>(n_ctas);
  for (auto* list : {&s.runnable, &s.spinning, &s.sleeping, &s.copying}) list->clear(), list->reserve(n_fibers + 1);
  if (s.pool.empty()) s.pool.resize(1 << 16), s.kept.resize(64 << 20);
  s.free_copies = nullptr;
  for (Copy& copy : s.pool) copy.next = s.free_copies, s.free_copies = &copy;
  const std::size_t stack_stride = STACK_BYTES + 4096;
  u8* stacks = static_cast<u8*>(mmap(nullptr, n_fibers * stack_stride, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (stacks == MAP_FAILED) fault("no memory for the stacks of %zu threads", n_fibers);

  Fiber* fiber = s.fibers.data();
  Cta* cta = s.ctas.data();
  for (const Launch& launch : launches)
    for (u32 c = 0; c < launch.n_ctas; ++c, ++cta) {
      if (launch.shared_bytes > MOST_SHARED_BYTES)
        fault("%zu bytes of shared memory (allowed: up to %zu)", launch.shared_bytes, MOST_SHARED_BYTES);
      cta->alive = launch.n_threads;
      cta->clock_offset = draw() >> 20;
      cta->slow = seed % 3 == 1 && (draw() & 3) == 0;
      cta->shared_bytes = launch.shared_bytes;
      cta->shared = static_cast<u8*>(std::aligned_alloc(128, (launch.shared_bytes + 127) / 128 * 128 + 128));
      std::memset(cta->shared, 0xa5, launch.shared_bytes);
#ifdef XSTAGE_ADDRESS_SANITIZER
      __asan_poison_memory_region(cta->shared + launch.shared_bytes, (launch.shared_bytes + 127) / 128 * 128 + 128 - launch.shared_bytes);
#endif
      cta->warps = std::vector<Warp>(launch.n_threads / WARP);
      for (u32 t = 0; t < launch.n_threads; ++t, ++fiber) {
        fiber->place = Place{t, launch.n_threads, c, launch.n_ctas, launch.gpu, cta->shared};
        fiber->cta = cta;
        fiber->kernel = launch.kernel;
        fiber->parameters = launch.parameters;
        fiber->stack = stacks + 4096 + (fiber - s.fibers.data()) * stack_stride;
        mprotect(fiber->stack - 4096, 4096, PROT_NONE);
        prepare(fiber->context, fiber->stack, STACK_BYTES, fiber_main);
        fiber->identity = new_identity();
        s.runnable.push_back(fiber);
      }
    }
  s.alive = static_cast<u32>(n_fibers);
  loop(deadlines);

  tell_acquire(&s.done_token);
  for (Fiber& each : s.fibers) {
    for (Identity other : {each.async.engine, each.loads.engine, each.stores.engine, each.fenced}) {
      if (!other) continue;
      become(other);
      tell_release(&s.done_token);
      become(s.main_identity);
      tell_acquire(&s.done_token);
      drop_identity(other);
    }
    if (each.identity) drop_identity(each.identity);
  }
  for (Cta& each : s.ctas) {
#ifdef XSTAGE_ADDRESS_SANITIZER
    __asan_unpoison_memory_region(each.shared, (each.shared_bytes + 127) / 128 * 128 + 128);
#endif
    std::free(each.shared);
  }
#ifdef XSTAGE_ADDRESS_SANITIZER
  __asan_unpoison_memory_region(stacks, n_fibers * stack_stride);
#endif
  munmap(stacks, n_fibers * stack_stride);
  return s.ticks;
}

}  // namespace xstage::emulation
