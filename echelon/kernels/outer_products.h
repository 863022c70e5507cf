// Arguments of a sum of outer products, shared by the kernels of all devices.
#pragma once

#include <cstdint>

namespace echelon::kernels {

// The elements of a row lie side by side; `stride` is the distance between rows.
template <class T>
struct Matrix {
  T* data = nullptr;
  std::int64_t stride = 0;

  Matrix from(std::int64_t row, std::int64_t column) const {
    return {data + row * stride + column, stride};
  }
};

// product = scale * x^T y and sums = the sum of y's rows; with `add`, added to what is there.
template <class T>
struct OuterProducts {
  std::int64_t rows = 0;  // at least 1
  std::int64_t x_columns = 0, y_columns = 0;
  Matrix<const T> x;  // [rows, x_columns]
  Matrix<const T> y;  // [rows, y_columns]
  T scale = 1;
  Matrix<T> product;  // [x_columns, y_columns]
  bool add = false;
  T* sums = nullptr;  // [y_columns]; null: not wanted
  bool add_sums = false;
};

}  // namespace echelon::kernels
