// Between the scheduler (emulation_scheduler.cpp) and the program that feeds it (emulation_main.cpp).
#pragma once

#include <string>
#include <vector>

#include "emulation.h"

namespace xstage::emulation {

enum : int { EXIT_BAD_JOB = 2, EXIT_DEADLOCK = 3, EXIT_FAULT = 4 };

// A buffer as kernels see it: its name for people, and the GPU whose memory it is (-1: anybody's).
struct Region {
  std::string name;
  u8* first;
  std::size_t bytes, element;
  int home;
};

struct Launch {
  const Kernel* kernel;
  const void* parameters;
  u32 gpu, n_ctas, n_threads;
  std::size_t shared_bytes;
};

const Kernel* find_kernel(const std::string& name);
void set_regions(const std::vector<Region>& regions);
const Region* region_of(const void* address);
std::string describe(const void* address);

// Runs all launches at once until every thread has ended; returns the time in ticks. Ends the process on a deadlock or a
// fault. With `deadlines` a deadlock lets the deadlines of all spins pass instead.
u64 run(const std::vector<Launch>& launches, u64 seed, bool deadlines);

}  // namespace xstage::emulation
