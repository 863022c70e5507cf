// A small residual network of torch's own modules, each a layer of the Stack. Its norms are over
// groups of channels of one image: norms over a batch would make an image's output depend on which
// others a rank happens to have.
#pragma once

#include <echelon/nn/stack.h>

#include <cstdint>

struct ResNetOptions {
  std::int64_t channels = 16;  // at full size; twice as many at half of it, and so on
  std::int64_t stages = 3;     // sizes, with two residual blocks each
  std::int64_t groups = 4;     // that channels are normalised in
  std::int64_t classes = 8;
};

echelon::Stack resnet(const ResNetOptions& options);
