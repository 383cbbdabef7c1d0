// on_gpu FOLDER: runs a package for a GPU of `put(x, cache)`, with the stand-in for the driver; see test_gpu_package.py.
#include <cstdio>
#include <cstdlib>

#include "model.h"

using namespace dynamo_package;
using Address = unsigned long long;

static void need(bool truth, const char* what) {
  if (truth) return;
  printf("not so: %s\n", what);
  exit(1);
}

template <class Function>
static Function find(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  return reinterpret_cast<Function>(dlsym(library, name));
}

static size_t count_of(const std::string& text, const std::string& word) {
  size_t found = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

int main(int, char** argv) {
  auto log = find<const char* (*)()>("standin_log");
  auto live = find<size_t (*)()>("standin_live");
  auto room = find<size_t (*)(Address)>("standin_room");
  auto allocate = find<int (*)(Address*, size_t)>("cuMemAlloc_v2");
  auto retain = find<int (*)(void**, int)>("cuDevicePrimaryCtxRetain");
  auto push = find<int (*)(void*)>("cuCtxPushCurrent_v2");
  {
    Model model = Model::load(argv[1]);
    std::vector<float> values(32, 1.0f);
    Tensor x = Tensor::of<float>(values, {4, 8}), cache = Tensor::of<float>(values, {4, 8});
    log();

    std::vector<Tensor> results = model.run({x, cache});
    std::string text = log();
    need(results.size() == 2 && results[1].begin == cache.begin, "a result that is an input lies where that lies");
    need(count_of(text, "to device 128") == 2 && count_of(text, "to host 128") == 2, "both inputs go, the written one comes back");
    need(count_of(text, "launch") >= 1 && count_of(text, "wait 0") == 1, "one wait");

    void* context = nullptr;
    retain(&context, 0), push(context);
    Address there[2] = {};
    need(allocate(&there[0], 128) == 0 && allocate(&there[1], 144) == 0, "memory");
    Tensor x_there = Tensor::over(reinterpret_cast<void*>(there[0]), Type::kFloat32, {4, 8});
    Tensor cache_there = Tensor::over(reinterpret_cast<void*>(there[1]), Type::kFloat32, {4, 8});
    auto* stream = reinterpret_cast<void*>(0x77);
    log();
    results = model.run_on_device({x_there, cache_there}, stream);
    text = log();
    need(count_of(text, "wait") == 0 && count_of(text, "to host") == 0 && count_of(text, "to device") == 0, "nothing is copied");
    need(count_of(text, "launch") == count_of(text, "stream 0x77"), "launches are in the stream");
    need(room(reinterpret_cast<Address>(results[0].begin)) >= 128, "a result lies on the device");
    void* first = results[0].begin;
    std::vector<Tensor> more = model.run_on_device({x_there, cache_there}, stream);
    need(more[0].begin != first, "memory of a result that lives is not used again");
    results.clear(), more.clear(), log();
    more = model.run_on_device({x_there, cache_there}, stream);
    need(count_of(log(), "allocate") == 0, "memory of results that have gone is used again");

    cache_there.begin = reinterpret_cast<void*>(there[1] + 4);  // no multiple of 16
    more = model.run_on_device({x_there, cache_there}, stream);
    need(count_of(log(), "on device 128") == 2, "what does not lie well is moved, and back");
    std::vector<Tensor> mixed = model.run_on_device({x, x_there}, stream);
    text = log();
    need(count_of(text, "to device 128") == 1 && count_of(text, "wait 0x77") == 1, "memory of the host is waited for");
    try {
      model.run({x, Tensor::over(x.begin, Type::kFloat32, {4, 8})});
      need(false, "a written input shares no memory");
    } catch (const Error& error) {
      need(count_of(error.what(), "shares memory") == 1, error.what());
    }
    need(count_of(log(), "wrong") == 0, "nothing was wrong");
  }
  std::string text = log();
  need(count_of(text, "wrong") == 0, text.c_str());
  need(live() == 128 + 144, "all memory but ours is free");
  puts("all is well");
}
