// Runs a job of emulated kernels: JOB RESULT. A job is buffers, launches, pointers to fill in, and seeds; each seed is a run
// from the same initial buffers. The result holds the buffers marked as output after each run, one run after the other.
// Little-endian; strings and arrays of bytes are preceded by their length (8 bytes). Written by emulate.py.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "emulation_run.h"

using namespace xstage::emulation;

namespace {

struct Reader {
  std::FILE* file;

  void bytes(void* to, std::size_t size) {
    if (size && std::fread(to, 1, size, file) != size) {
      std::fprintf(stderr, "fault: the job is cut short\n");
      std::exit(EXIT_BAD_JOB);
    }
  }
  long long number() {
    long long value;
    bytes(&value, sizeof value);
    return value;
  }
  std::string text() {
    std::string value(static_cast<std::size_t>(number()), '\0');
    bytes(value.data(), value.size());
    return value;
  }
};

struct Buffer {
  std::string name, initial;
  long long home, element, output;
  u8* memory;
};

struct Call {
  std::string parameters;
  Launch launch;
};

struct Pointer {
  long long in_launch, index, offset, target, target_offset;
};

[[noreturn]] void refuse(const std::string& reason) {
  std::fprintf(stderr, "fault: %s\n", reason.c_str());
  std::exit(EXIT_BAD_JOB);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) refuse("needs JOB and RESULT");
  Reader job{std::fopen(argv[1], "rb")};
  std::FILE* result = std::fopen(argv[2], "wb");
  if (!job.file || !result) refuse("a file cannot be opened");

  bool deadlines = job.number() != 0;
  std::vector<Buffer> buffers(static_cast<std::size_t>(job.number()));
  std::vector<Region> regions;
  for (Buffer& buffer : buffers) {
    buffer.name = job.text();
    buffer.home = job.number();
    buffer.element = job.number();
    buffer.output = job.number();
    buffer.initial = job.text();
    void* memory = nullptr;  // not aligned_alloc: this one takes any size, so that memory ends where the buffer ends
    if (posix_memalign(&memory, 128, buffer.initial.size())) refuse("no memory for " + buffer.name);
    buffer.memory = static_cast<u8*>(memory);
    regions.push_back(Region{buffer.name, buffer.memory, buffer.initial.size(), static_cast<std::size_t>(buffer.element),
                             static_cast<int>(buffer.home)});
  }
  set_regions(regions);

  std::vector<Call> calls(static_cast<std::size_t>(job.number()));
  for (Call& call : calls) {
    std::string name = job.text();
    Launch& launch = call.launch;
    launch.kernel = find_kernel(name);
    if (!launch.kernel) refuse("there is no kernel " + name);
    launch.gpu = static_cast<u32>(job.number());
    launch.n_ctas = static_cast<u32>(job.number());
    launch.n_threads = static_cast<u32>(job.number());
    launch.shared_bytes = static_cast<std::size_t>(job.number());
    call.parameters = job.text();
    if (call.parameters.size() != launch.kernel->parameter_bytes)
      refuse(name + " takes parameters of " + std::to_string(launch.kernel->parameter_bytes) + " bytes, not " +
             std::to_string(call.parameters.size()));
    if (launch.n_threads == 0 || launch.n_threads % 32 || launch.n_threads > launch.kernel->max_threads)
      refuse(name + " runs whole warps of up to " + std::to_string(launch.kernel->max_threads) + " threads, not " +
             std::to_string(launch.n_threads));
  }
  std::vector<Pointer> pointers(static_cast<std::size_t>(job.number()));
  for (Pointer& pointer : pointers) {
    pointer.in_launch = job.number();
    pointer.index = job.number();
    pointer.offset = job.number();
    pointer.target = job.number();
    pointer.target_offset = job.number();
  }
  for (const Pointer& pointer : pointers) {
    const u8* address = buffers[static_cast<std::size_t>(pointer.target)].memory + pointer.target_offset;
    std::size_t index = static_cast<std::size_t>(pointer.index);
    std::string& place = pointer.in_launch ? calls[index].parameters : buffers[index].initial;
    std::memcpy(place.data() + pointer.offset, &address, sizeof address);
  }
  std::vector<Launch> launches;
  for (Call& call : calls) {
    call.launch.parameters = call.parameters.data();
    launches.push_back(call.launch);
  }

  for (long long n_seeds = job.number(); n_seeds > 0; --n_seeds) {
    u64 seed = static_cast<u64>(job.number());
    std::fprintf(stderr, "seed %llu\n", seed);
    for (const Buffer& buffer : buffers) std::memcpy(buffer.memory, buffer.initial.data(), buffer.initial.size());
    u64 ticks = run(launches, seed, deadlines);
    std::fwrite(&ticks, 1, sizeof ticks, result);
    for (const Buffer& buffer : buffers)
      if (buffer.output) std::fwrite(buffer.memory, 1, buffer.initial.size(), result);
    std::fflush(result);
  }
  for (const Buffer& buffer : buffers) std::free(buffer.memory);
  std::fclose(job.file);
  return std::fclose(result) == 0 ? 0 : EXIT_BAD_JOB;
}
