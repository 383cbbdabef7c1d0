// The functions of the CUDA driver that a package calls, found by `dlopen`: nothing has to be linked.
//
// The declarations are those of the driver's public interface, version 2 where there are two.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <string>

namespace packaged {
namespace {

using Address = unsigned long long;  // on the device
using Code = int;                    // of an error; 0: none

constexpr Code kOutOfMemory = 2, kAssert = 710;
constexpr int kMajor = 75, kMinor = 76, kMostShared = 97;  // attributes of a device
constexpr int kMemoryType = 2, kOrdinal = 9;               // of an address
constexpr unsigned kOnDevice = 2;                          // a memory type
constexpr int kDynamicShared = 8;                          // an attribute of a kernel

struct Driver {
  Code (*init)(unsigned) = nullptr;
  Code (*device_count)(int*) = nullptr;
  Code (*device_get)(int*, int) = nullptr;
  Code (*device_attribute)(int*, int, int) = nullptr;
  Code (*device_name)(char*, int, int) = nullptr;
  Code (*retain)(void**, int) = nullptr;
  Code (*release)(int) = nullptr;
  Code (*current)(void**) = nullptr;
  Code (*current_device)(int*) = nullptr;
  Code (*push)(void*) = nullptr;
  Code (*pop)(void**) = nullptr;
  Code (*load)(void**, const void*) = nullptr;
  Code (*unload)(void*) = nullptr;
  Code (*function)(void**, void*, const char*) = nullptr;
  Code (*set)(void*, int, int) = nullptr;
  Code (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                 void**) = nullptr;
  Code (*allocate)(Address*, size_t) = nullptr;
  Code (*free)(Address) = nullptr;
  Code (*to_device)(Address, const void*, size_t, void*) = nullptr;
  Code (*to_host)(void*, Address, size_t, void*) = nullptr;
  Code (*on_device)(Address, Address, size_t, void*) = nullptr;
  Code (*synchronize)(void*) = nullptr;
  Code (*pointer)(void*, int, Address) = nullptr;
  Code (*error_name)(Code, const char**) = nullptr;
  Code (*error_text)(Code, const char**) = nullptr;

  // "" where the driver is there and a device.
  std::string find() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) return std::string("there is no driver of CUDA here: ") + dlerror();
    std::string missing;
    auto get = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) missing += std::string(" ") + name;
    };
    get("cuInit", init), get("cuDeviceGetCount", device_count), get("cuDeviceGet", device_get);
    get("cuDeviceGetAttribute", device_attribute), get("cuDeviceGetName", device_name);
    get("cuDevicePrimaryCtxRetain", retain), get("cuDevicePrimaryCtxRelease_v2", release);
    get("cuCtxGetCurrent", current), get("cuCtxGetDevice", current_device);
    get("cuCtxPushCurrent_v2", push), get("cuCtxPopCurrent_v2", pop);
    get("cuModuleLoadData", load), get("cuModuleUnload", unload), get("cuModuleGetFunction", function);
    get("cuFuncSetAttribute", set), get("cuLaunchKernel", launch);
    get("cuMemAlloc_v2", allocate), get("cuMemFree_v2", free);
    get("cuMemcpyHtoDAsync_v2", to_device), get("cuMemcpyDtoHAsync_v2", to_host);
    get("cuMemcpyDtoDAsync_v2", on_device), get("cuStreamSynchronize", synchronize);
    get("cuPointerGetAttribute", pointer), get("cuGetErrorName", error_name), get("cuGetErrorString", error_text);
    if (!missing.empty()) return "the driver of CUDA is too old; it lacks" + missing;
    if (Code code = init(0)) return "CUDA does not start: " + described(code);
    int count = 0;
    if (Code code = device_count(&count)) return "CUDA does not start: " + described(code);
    return count > 0 ? "" : "there is no GPU here";
  }

  std::string described(Code code) const {
    const char *name = nullptr, *text = nullptr;
    error_name(code, &name), error_text(code, &text);
    if (name == nullptr) return "error " + std::to_string(code);
    return std::string(name) + (text ? std::string(" (") + text + ")" : "");
  }
};

}  // namespace
}  // namespace packaged
