// A small residual network of torch's own modules, each a layer of the Stack. It uses group norm:
// with batch norm the output for an image would depend on the other images of its rank.
#pragma once

#include <echelon/nn/stack.h>

#include <cstdint>

struct ResNetOptions {
  std::int64_t channels = 16;  // at full size; doubled each time the size is halved
  std::int64_t stages = 3;     // of two residual blocks each, at one size
  std::int64_t groups = 4;     // of channels, for the norms
  std::int64_t classes = 8;
};

echelon::Stack resnet(const ResNetOptions& options);
