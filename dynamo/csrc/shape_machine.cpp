// The stack machine of shape guards: Python's arithmetic over int64 and double.
#include "shape_machine.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tensor_guards.h"

namespace {

// Order and names are known to dynamo/guards/shape_code.py (WORDS).
enum Word { CONST_INT, CONST_FLOAT, NUMBER, SIZE, ADD, SUB, MUL, FLOORDIV, TRUEDIV, MOD, POW, NEG,
            MIN, MAX, ABS, EQ, NE, LT, LE, GT, GE, AND, OR, NOT,
            SQRT, LOG, LOG2, LOG10, LOG1P, EXP, SIN, COS, TANH, LAST = TANH };

// The functions that Python's `math` calls, from SQRT on.
double (*const CURVES[])(double) = {std::sqrt, std::log, std::log2, std::log10, std::log1p,
                                    std::exp, std::sin, std::cos, std::tanh};

struct Step {
    int word;
    int a, b;
    int64_t integer;
    double real;
};

struct Number {
    bool is_float;
    int64_t i;
    double d;
    double as_double() const { return is_float ? d : (double)i; }
};

Number make(int64_t i) { return {false, i, 0}; }
Number make(double d) { return {true, 0, d}; }

int64_t floor_mod(int64_t a, int64_t b) {
    int64_t r = a % b;
    return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
}

bool power(int64_t base, int64_t exponent, int64_t *out) {
    if (exponent < 0) {
        return false;
    }
    int64_t result = 1;
    for (; exponent > 0; exponent--) {
        if (__builtin_mul_overflow(result, base, &result)) {
            return false;
        }
    }
    *out = result;
    return true;
}

// True for what a double holds without rounding.
bool is_exact(int64_t value) {
    constexpr int64_t LARGEST = (int64_t)1 << 53;
    return value >= -LARGEST && value <= LARGEST;
}

bool integer_step(int word, int64_t a, int64_t b, Number *out) {
    int64_t r = 0;
    switch (word) {
        case ADD:
            if (__builtin_add_overflow(a, b, &r)) return false;
            break;
        case SUB:
            if (__builtin_sub_overflow(a, b, &r)) return false;
            break;
        case MUL:
            if (__builtin_mul_overflow(a, b, &r)) return false;
            break;
        case FLOORDIV:
            if (b == 0 || (a == INT64_MIN && b == -1)) return false;
            r = a / b - (a % b != 0 && ((a < 0) != (b < 0)));
            break;
        case MOD:
            if (b == 0 || b == -1) {
                if (b == 0) return false;
                break;
            }
            r = floor_mod(a, b);
            break;
        case TRUEDIV:  // Python rounds once
            if (b == 0 || !is_exact(a) || !is_exact(b)) return false;
            *out = make((double)a / (double)b);
            return true;
        case POW:
            if (!power(a, b, &r)) return false;
            break;
        case MIN: r = a < b ? a : b; break;
        case MAX: r = a > b ? a : b; break;
        case EQ: r = a == b; break;
        case NE: r = a != b; break;
        case LT: r = a < b; break;
        case LE: r = a <= b; break;
        case GT: r = a > b; break;
        case GE: r = a >= b; break;
        case AND: r = a && b; break;
        case OR: r = a || b; break;
        default: return false;
    }
    *out = make(r);
    return true;
}

// Python's a // b and a % b, which go by the exact remainder: 1.0 // 0.1 is 9.
double float_mod(double a, double b) {
    double rest = std::fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double float_floordiv(double a, double b) {
    double quotient = (a - std::fmod(a, b)) / b;
    double rest = std::fmod(a, b);
    quotient -= rest != 0 && (rest < 0) != (b < 0);
    double whole = std::floor(quotient);
    return whole + (quotient - whole > 0.5);
}

bool float_step(int word, double a, double b, Number *out) {
    switch (word) {
        case ADD: *out = make(a + b); return true;
        case SUB: *out = make(a - b); return true;
        case MUL: *out = make(a * b); return true;
        case TRUEDIV: *out = make(a / b); return b != 0;
        case FLOORDIV: *out = make(float_floordiv(a, b)); return b != 0;
        case MOD: *out = make(float_mod(a, b)); return b != 0;
        case POW: *out = make(std::pow(a, b)); return true;
        case MIN: *out = make(b < a ? b : a); return true;
        case MAX: *out = make(b > a ? b : a); return true;
        case EQ: *out = make((int64_t)(a == b)); return true;
        case NE: *out = make((int64_t)(a != b)); return true;
        case LT: *out = make((int64_t)(a < b)); return true;
        case LE: *out = make((int64_t)(a <= b)); return true;
        case GT: *out = make((int64_t)(a > b)); return true;
        case GE: *out = make((int64_t)(a >= b)); return true;
        case AND: *out = make((int64_t)(a != 0 && b != 0)); return true;
        case OR: *out = make((int64_t)(a != 0 || b != 0)); return true;
        default: return false;
    }
}

// A float beside an int: Python compares the two exactly, and `min` keeps an int. An int that a
// double rounds is not known here.
bool mixed_step(int word, const Number &left, const Number &right, Number *out) {
    bool compares = (word >= EQ && word <= GE) || word == MIN || word == MAX;
    if (compares && !is_exact(left.is_float ? right.i : left.i)) {
        return false;
    }
    return float_step(word, left.as_double(), right.as_double(), out);
}

bool read_number(PyObject *value, Number *out) {
    if (PyFloat_Check(value)) {
        *out = make(PyFloat_AS_DOUBLE(value));
        return true;
    }
    if (!PyLong_Check(value)) {
        return false;
    }
    int overflow = 0;
    long long integer = PyLong_AsLongLongAndOverflow(value, &overflow);
    *out = make((int64_t)integer);
    return overflow == 0;
}

bool unary_step(int word, Number &n) {
    switch (word) {
        case NEG:
            if (n.is_float) {
                n.d = -n.d;
            } else if (__builtin_sub_overflow((int64_t)0, n.i, &n.i)) {
                return false;
            }
            return true;
        case ABS:
            return n.is_float ? (n.d = std::fabs(n.d), true)
                              : (n.i >= 0 || unary_step(NEG, n));
        case NOT:
            n = make((int64_t)(n.as_double() == 0));
            return true;
        default:
            n = make(CURVES[word - SQRT](n.as_double()));
            return std::isfinite(n.d);
    }
}

bool is_unary(int word) { return word == NEG || word == ABS || word >= NOT; }

}  // namespace

struct ShapeWords {
    std::vector<Step> steps;
    int depth;
};

ShapeWords *shape_words_new(PyObject *words) {
    auto *result = new ShapeWords{{}, 0};
    int depth = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(words); i++) {
        PyObject *a, *b;
        Step step{};
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(words, i), "iOO", &step.word, &a, &b)) {
            delete result;
            return nullptr;
        }
        if (step.word == CONST_FLOAT) {
            step.real = PyFloat_AsDouble(a);
        } else if (step.word == CONST_INT) {
            step.integer = PyLong_AsLongLong(a);
        } else {
            step.a = (int)PyLong_AsLong(a);
            step.b = (int)PyLong_AsLong(b);
        }
        bool pushes = step.word <= SIZE;
        depth += pushes ? 1 : is_unary(step.word) ? 0 : -1;
        result->depth = depth > result->depth ? depth : result->depth;
        if (!PyErr_Occurred() && (depth < 1 || step.word < 0 || step.word > LAST)) {
            PyErr_SetString(PyExc_ValueError, "malformed shape expression");
        }
        if (PyErr_Occurred()) {
            delete result;
            return nullptr;
        }
        result->steps.push_back(step);
    }
    if (depth != 1 || result->depth > 64) {
        PyErr_SetString(PyExc_ValueError, "shape expression is malformed or too deep");
        delete result;
        return nullptr;
    }
    return result;
}

void shape_words_free(ShapeWords *words) { delete words; }

int shape_holds(const ShapeWords *words, PyObject **values) {
    Number stack[64];
    int top = -1;
    for (const Step &step : words->steps) {
        bool known = true;
        switch (step.word) {
            case CONST_INT:
                stack[++top] = make(step.integer);
                break;
            case CONST_FLOAT:
                stack[++top] = make(step.real);
                break;
            case NUMBER:
                known = read_number(values[step.a], &stack[++top]);
                break;
            case SIZE: {
                long long number = 0;  // b packs what (low 3 bits) and dim
                known = tensor_number != nullptr &&
                        tensor_number(values[step.a], step.b & 7, step.b >> 3, &number) == 1;
                stack[++top] = make((int64_t)number);
                break;
            }
            default: {
                if (is_unary(step.word)) {
                    known = unary_step(step.word, stack[top]);
                    break;
                }
                Number right = stack[top--], left = stack[top];
                known = left.is_float != right.is_float
                            ? mixed_step(step.word, left, right, &stack[top])
                        : left.is_float ? float_step(step.word, left.d, right.d, &stack[top])
                                        : integer_step(step.word, left.i, right.i, &stack[top]);
            }
        }
        if (!known) {
            return 0;
        }
    }
    return stack[0].as_double() != 0;
}
