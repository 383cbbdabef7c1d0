// A stand-in for libcuda.so.1: its device is the host, and what is asked of it is written down.
//
// Memory is known by its blocks, filled with a pattern before anybody writes. A launch calls `run` (set by `standin_run`)
// with the kernel's name and the addresses that it takes. Misuse (addresses outside of live blocks, a context that is not
// current, a stream that nobody knows) is an error of the call and a line that begins with "wrong".
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

using Address = unsigned long long;
using Run = int (*)(const char* name, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned shared,
                    void* stream, const Address* addresses, int count);

namespace {

std::mutex guard;
std::string lines;
std::map<Address, size_t> blocks;  // live
std::set<void*> modules;
std::set<std::string*> functions;
int capability = 90, fails_after = -1, context_mark, retained;
size_t most_bytes = size_t{1} << 40, used_bytes;
thread_local std::vector<void*> stack;
Run run;

void note(const std::string& text) { lines += text + "\n"; }

int wrong(const std::string& text) {
  note("wrong: " + text);
  return 1;
}

bool inside() { return !stack.empty() && stack.back() == &context_mark; }

// Whether [begin, begin + bytes) lies in a live block.
bool lives(Address begin, size_t bytes) {
  auto after = blocks.upper_bound(begin);
  if (after == blocks.begin()) return false;
  auto block = std::prev(after);
  return begin + bytes <= block->first + block->second;
}

int copied(const char* what, void* to, const void* from, size_t bytes, Address device) {
  std::lock_guard<std::mutex> lock(guard);
  if (!inside()) return wrong(std::string(what) + " without a context");
  if (!lives(device, bytes)) return wrong(std::string(what) + " of memory that is not there");
  note(std::string(what) + " " + std::to_string(bytes));
  memmove(to, from, bytes);
  return 0;
}

}  // namespace

// -- for tests --------------------------------------------------------------------------------------------------------

API void standin_run(Run function) { run = function; }
API void standin_set(int kind, size_t bytes, int fails) { capability = kind, most_bytes = bytes, fails_after = fails; }
API size_t standin_live() { return used_bytes; }
API int standin_retained() { return retained; }
API const char* standin_log() {
  static std::string kept;
  std::lock_guard<std::mutex> lock(guard);
  kept.swap(lines);
  lines.clear();
  return kept.c_str();
}
// How many bytes from an address on are in its block.
API size_t standin_room(Address at) {
  std::lock_guard<std::mutex> lock(guard);
  auto after = blocks.upper_bound(at);
  if (after == blocks.begin()) return 0;
  auto block = std::prev(after);
  return at < block->first + block->second ? block->first + block->second - at : 0;
}

// -- the driver -------------------------------------------------------------------------------------------------------

API int cuInit(unsigned) { return 0; }
API int cuDeviceGetCount(int* count) { return *count = 1, 0; }
API int cuDeviceGet(int* device, int number) { return *device = number, number == 0 ? 0 : 101; }
API int cuDeviceGetName(char* name, int room, int) { return snprintf(name, static_cast<size_t>(room), "a stand-in"), 0; }
API int cuDeviceGetAttribute(int* value, int which, int) {
  *value = which == 75 ? capability / 10 : which == 76 ? capability % 10 : which == 97 ? 232448 : 0;
  return 0;
}
API int cuDevicePrimaryCtxRetain(void** context, int) { return ++retained, *context = &context_mark, 0; }
API int cuDevicePrimaryCtxRelease_v2(int) { return --retained, 0; }
API int cuCtxGetCurrent(void** context) { return *context = stack.empty() ? nullptr : stack.back(), 0; }
API int cuCtxGetDevice(int* device) { return *device = 0, 0; }
API int cuCtxPushCurrent_v2(void* context) { return stack.push_back(context), 0; }
API int cuCtxPopCurrent_v2(void** context) {
  if (stack.empty()) return 201;
  return *context = stack.back(), stack.pop_back(), 0;
}

API int cuModuleLoadData(void** module, const void* image) {
  std::lock_guard<std::mutex> lock(guard);
  if (!inside()) return wrong("a module without a context");
  if (reinterpret_cast<uintptr_t>(image) % 64) return wrong("a module that is not aligned");
  auto* made = new std::string(static_cast<const char*>(image));
  modules.insert(made);
  return *module = made, 0;
}
API int cuModuleUnload(void* module) {
  std::lock_guard<std::mutex> lock(guard);
  if (modules.erase(module) == 0) return wrong("a module that is not there");
  return 0;
}
API int cuModuleGetFunction(void** function, void* module, const char* name) {
  std::lock_guard<std::mutex> lock(guard);
  if (modules.count(module) == 0) return wrong("a function of a module that is not there");
  if (static_cast<std::string*>(module)->compare(name) != 0) return 500;
  auto* made = new std::string(name);
  functions.insert(made);
  return *function = made, 0;
}
API int cuFuncSetAttribute(void* function, int which, int value) {
  std::lock_guard<std::mutex> lock(guard);
  note(*static_cast<std::string*>(function) + " may have " + std::to_string(value) + (which == 8 ? " shared" : " ?"));
  return 0;
}

API int cuMemAlloc_v2(Address* address, size_t bytes) {
  std::lock_guard<std::mutex> lock(guard);
  if (!inside()) return wrong("memory without a context");
  if (bytes == 0) return wrong("memory of no bytes");
  if (used_bytes + bytes > most_bytes) return 2;
  void* made = aligned_alloc(256, (bytes + 255) / 256 * 256);
  memset(made, 0xCD, bytes);
  *address = reinterpret_cast<Address>(made);
  blocks[*address] = bytes;
  used_bytes += bytes;
  note("allocate " + std::to_string(bytes));
  return 0;
}
API int cuMemFree_v2(Address address) {
  std::lock_guard<std::mutex> lock(guard);
  if (!inside()) return wrong("free without a context");
  auto block = blocks.find(address);
  if (block == blocks.end()) return wrong("free of memory that is not there");
  used_bytes -= block->second;
  note("free " + std::to_string(block->second));
  memset(reinterpret_cast<void*>(address), 0xDD, block->second);
  free(reinterpret_cast<void*>(address));
  blocks.erase(block);
  return 0;
}
API int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void*) {
  return copied("to device", reinterpret_cast<void*>(to), from, bytes, to);
}
API int cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void*) {
  return copied("to host", to, reinterpret_cast<void*>(from), bytes, from);
}
API int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void*) {
  int code = copied("on device", reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes, to);
  std::lock_guard<std::mutex> lock(guard);
  return code == 0 && !lives(from, bytes) ? wrong("a copy from memory that is not there") : code;
}
API int cuStreamSynchronize(void* stream) {
  std::lock_guard<std::mutex> lock(guard);
  std::ostringstream text;
  text << "wait " << stream;
  return note(text.str()), 0;
}
API int cuPointerGetAttribute(void* value, int which, Address address) {
  std::lock_guard<std::mutex> lock(guard);
  if (!lives(address, 1)) return 1;
  *static_cast<unsigned*>(value) = which == 2 ? 2 : 0;
  return 0;
}
API int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                       unsigned shared, void* stream, void** parameters, void** extra) {
  std::vector<Address> addresses;
  std::string name;
  {
    std::lock_guard<std::mutex> lock(guard);
    if (!inside()) return wrong("a launch without a context");
    if (functions.count(static_cast<std::string*>(function)) == 0) return wrong("a kernel that is not there");
    if (x == 0 || y == 0 || z == 0 || y > 65535 || z > 65535 || extra != nullptr) return wrong("a grid");
    name = *static_cast<std::string*>(function);
    // "name:count": so many addresses, then two of Triton's that are null.
    int count = atoi(name.c_str() + name.rfind('_') + 1);
    for (int i = 0; i < count + 2; ++i) addresses.push_back(*static_cast<Address*>(parameters[i]));
    std::ostringstream text;
    text << "launch " << name << " " << x << "x" << y << "x" << z << " of " << threads << ", " << shared << " shared, stream "
         << stream;
    note(text.str());
    for (int i = 0; i < count; ++i) {
      if (!lives(addresses[static_cast<size_t>(i)], 1)) return wrong("an operand of " + name + " is not there");
    }
    if (addresses[static_cast<size_t>(count)] || addresses[static_cast<size_t>(count) + 1]) return wrong("scratch memory");
    if (fails_after >= 0 && fails_after-- == 0) return 710;
    addresses.resize(static_cast<size_t>(count));
  }
  if (run == nullptr) return 0;
  return run(name.c_str(), x, y, z, threads, shared, stream, addresses.data(), static_cast<int>(addresses.size()));
}
API int cuGetErrorName(int code, const char** name) { return *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR", 0; }
API int cuGetErrorString(int, const char** text) { return *text = "as the stand-in says", 0; }
