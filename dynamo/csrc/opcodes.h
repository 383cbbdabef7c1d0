/* Instructions of the guard program: (name, what it does). `dst`, `src`: value registers.
 * Accessors write `dst`; checks read `src`; a failed accessor fails the program. */
#define GUARD_OPCODES(X)                                                                       \
    X(LOCAL)          /* dst = argument number `extra` of the program's local names */         \
    X(CELL)           /* dst = cell object of free variable number `extra` */                  \
    X(GLOBALS)        /* dst = the frame's globals */                                          \
    X(BUILTINS)       /* dst = the frame's builtins */                                         \
    X(OBJECT)         /* dst = arg */                                                          \
    X(MODULE)         /* dst = sys.modules[arg] */                                             \
    X(ITEM)           /* dst = src[arg], dict/list/tuple read directly; extra = index */       \
    X(DICT)           /* dst = instance dict of src */                                         \
    X(ATTR)           /* dst = src.arg */                                                      \
    X(KEY_AT)         /* dst = extra-th key of the dict src */                                 \
    X(VALUE_AT)       /* dst = value of the extra-th key */                                    \
    X(CONTENTS)       /* dst = contents of the cell src */                                     \
    X(TYPE_OF)        /* dst = type(src) */                                                    \
    X(DEREF)          /* dst = src() of a weak reference */                                    \
    X(STATE)          /* dst = arg(src): the state of an iterator or a set */                   \
    X(CALL)           /* dst = src(), a built-in function */                                   \
    X(ARRAY)          /* dst = the tensor arg(src) of an ordinary numpy array src */            \
    X(TAG_TEST)       /* dict src unchanged since TAG_SEAL: skip `extra` instructions */       \
    X(TAG_SEAL)       /* remember dict src for the TAG_TEST `extra` instructions before */     \
    X(IS_TYPE)        /* type(src) is arg */                                                   \
    X(IS)             /* src is arg */                                                         \
    X(IS_WEAK)        /* src is the object of the weak reference arg */                        \
    X(EQUAL)          /* src equals the constant arg, types included */                        \
    X(LENGTH)         /* len(src) == extra */                                                  \
    X(DICT_KEYS)      /* keys of src are arg, in order */                                      \
    X(EMPTY)          /* src is an empty dict */                                               \
    X(DICT_HAS)       /* arg in src, a dict or a set */                                        \
    X(DICT_LACKS)     /* arg not in src, a dict or a set */                                    \
    X(HAS_ATTR)       /* hasattr(src, arg) */                                                  \
    X(LACKS_ATTR)     /* not hasattr(src, arg) */                                              \
    X(SET_ITEMS)      /* the set src has exactly the items arg */                              \
    X(CODE)           /* src.__code__ is arg */                                                \
    X(SAME)           /* src is register extra */                                              \
    X(NOT_SAME)       /* src is not register extra */                                          \
    X(DISTINCT)       /* the registers arg hold pairwise different objects */                  \
    X(DISTINCT_STORAGE) /* the tensors in registers arg share no memory */                     \
    X(CELL_EMPTY)     /* the cell src is empty */                                              \
    X(WEAK_ALIVE)     /* the weak reference src is alive (extra 1) or dead (extra 0) */        \
    X(TRUTH)          /* bool(src) == extra */                                                 \
    X(IN_RANGE)       /* arg[0] <= src <= arg[1] (None: open) */                               \
    X(SUBCLASS)       /* isinstance(src, arg) by the real type */                              \
    X(TENSOR)         /* tensor facts arg hold for src */                                      \
    X(GLOBAL_STATE)   /* torch's global state is arg */                                        \
    X(SHAPE)          /* the expression arg (words of a stack machine) is true */
