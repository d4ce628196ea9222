// What special functions are made of: polynomials, and kernels that compute in double.
#pragma once

#include "maps.h"

namespace kvc {

// A sum of Chebyshev's polynomials of x, from -1 to 1 (Clenshaw).
template <int N>
double chebyshev(const double (&factors)[N], double x) {
  double one = 0, two = 0;
  for (int i = N - 1; i > 0; --i) {
    const double next = factors[i] + 2 * x * one - two;
    two = one;
    one = next;
  }
  return factors[0] + x * one - two;
}

// The factor of the highest power first.
template <int N>
double polynomial(const double (&factors)[N], double x) {
  double sum = factors[0];
  for (int i = 1; i < N; ++i) sum = sum * x + factors[i];
  return sum;
}

// Functions that are computed in double, and rounded to the type of the operand.
template <double (*kFunction)(double)>
struct InDouble : OfFloats {
  template <class T>
  static T apply(T x) {
    return static_cast<T>(kFunction(static_cast<double>(x)));
  }
};
template <double (*kFunction)(double, double)>
struct PairInDouble : OfFloats {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(kFunction(static_cast<double>(a), static_cast<double>(b)));
  }
};

}  // namespace kvc
