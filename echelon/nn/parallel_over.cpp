#include "echelon/nn/parallel_over.h"

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

namespace echelon {

void parallel_over(const at::Tensor& flat, std::int64_t grain,
                   const std::function<void(std::int64_t begin, std::int64_t end)>& fn) {
  if (flat.numel() == 0) return;
  auto elements = at::TensorIteratorConfig()
                      .set_check_mem_overlap(false)
                      .resize_outputs(false)
                      .check_all_same_dtype(false)  // no input to take the dtype from
                      .add_output(flat)
                      .build();
  const char* const base = static_cast<const char*>(flat.const_data_ptr());
  const auto size = static_cast<std::int64_t>(flat.element_size());
  elements.for_each(
      [&](char** data, const std::int64_t* strides, std::int64_t count, std::int64_t rows) {
        for (std::int64_t row = 0; row < rows; ++row) {
          const std::int64_t begin = (data[0] + row * strides[1] - base) / size;
          fn(begin, begin + count);
        }
      },
      grain);
}

void parallel_over(std::int64_t count, std::int64_t grain,
                   const std::function<void(std::int64_t begin, std::int64_t end)>& fn) {
  parallel_over(at::empty({count}, at::kByte), grain, fn);
}

}  // namespace echelon
