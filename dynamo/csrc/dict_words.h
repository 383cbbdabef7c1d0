// Words of memory that tell whether a dict has changed.
#ifndef DYNAMO_DICT_WORDS_H
#define DYNAMO_DICT_WORDS_H
#include <cstdint>
#include <vector>

#include "cpython_compat.h"

struct WatchedDict;

// The words that one plan looks at. Those of dicts without a version of their own live as long as they
// are in here (or in another).
class DictWords {
  public:
    DictWords() = default;
    DictWords(const DictWords &) = delete;
    ~DictWords() { clear(); }
    // A word that never again has its present value once the dict changes or dies; null where nothing
    // can tell. The dict's own memory holds the word, or we do.
    const uint64_t *add(PyObject *dict);
    void clear();

  private:
    std::vector<WatchedDict *> watched;
};

#endif
