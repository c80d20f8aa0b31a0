// What the emulated device says of itself: names of addresses, faults, and who waits for what when nothing can run.

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "emulation_scheduler.h"

namespace xstage::emulation {

namespace {

std::string what_it_waits_for(const Fiber& fiber) {
  char text[256];
  const Barrier& barrier = fiber.cta->barriers[fiber.at % N_BARRIERS];
  switch (fiber.state) {
    case State::BARRIER:
      std::snprintf(text, sizeof text, "at barrier %u of the CTA, where %u of %u threads have come", fiber.at,
                    barrier.arrived, fiber.at ? barrier.expected : fiber.cta->alive);
      return text;
    case State::MEETING:
      std::snprintf(text, sizeof text, "at %s, where other lanes of the warp are missing", fiber.what);
      return text;
    case State::SPIN: {
      u32 value = *static_cast<const volatile u32*>(fiber.word);
      std::snprintf(text, sizeof text, "spins on %s = %u, needs %llu", describe(fiber.word).c_str(), value, fiber.needed);
      return text;
    }
    case State::COPY:
      std::snprintf(text, sizeof text, "waits for copies (%s %u)", fiber.what, fiber.at);
      return text;
    default:
      return "runs";
  }
}

}  // namespace

void report_deadlock() {
  std::fprintf(stderr, "deadlock: nothing can run any more\n");
  u32 lines = 0;
  for (std::size_t i = 0; i < s.fibers.size();) {
    const Fiber& first = s.fibers[i];
    std::size_t next = i + 1;
    if (first.state == State::DONE) {
      i = next;
      continue;
    }
    std::string waits = what_it_waits_for(first);
    while (next < s.fibers.size() && s.fibers[next].cta == first.cta && s.fibers[next].state != State::DONE &&
           what_it_waits_for(s.fibers[next]) == waits)
      ++next;
    if (++lines <= 24) {
      std::fprintf(stderr, "  %s GPU %u CTA %u thread", first.kernel->name, first.place.gpu, first.place.cta);
      if (next - i > 1)
        std::fprintf(stderr, "s %u to %u: %s\n", first.place.thread, s.fibers[next - 1].place.thread, waits.c_str());
      else
        std::fprintf(stderr, " %u: %s\n", first.place.thread, waits.c_str());
    }
    i = next;
  }
  if (lines > 24) std::fprintf(stderr, "  and %u more\n", lines - 24);
  std::fflush(stderr);
  std::_Exit(EXIT_DEADLOCK);
}

void check_aligned(const void* address, u32 bytes, const char* what) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes)
    fault("%s at %s is not aligned to %u bytes", what, describe(address).c_str(), bytes);
}

void fault(const char* format, ...) {
  std::fprintf(stderr, "fault: ");
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "\n");
  std::fflush(stderr);
  std::_Exit(EXIT_FAULT);
}

const Region* region_of(const void* address) {
  const u8* byte = static_cast<const u8*>(address);
  for (const Region& region : s.regions)
    if (byte >= region.first && byte < region.first + region.bytes) return &region;
  return nullptr;
}

std::string describe(const void* address) {
  char text[200];
  const u8* byte = static_cast<const u8*>(address);
  if (const Region* region = region_of(address)) {
    std::snprintf(text, sizeof text, "%s[%zu]", region->name.c_str(),
                  static_cast<std::size_t>(byte - region->first) / region->element);
    return text;
  }
  for (const Cta& cta : s.ctas)
    if (byte >= cta.shared && byte < cta.shared + cta.shared_bytes) {
      std::snprintf(text, sizeof text, "shared memory + %zu", static_cast<std::size_t>(byte - cta.shared));
      return text;
    }
  std::snprintf(text, sizeof text, "%p", address);
  return text;
}

void set_regions(const std::vector<Region>& regions) { s.regions = regions; }

}  // namespace xstage::emulation
