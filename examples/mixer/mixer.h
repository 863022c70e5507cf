// MLP-Mixer (Tolstikhin et al., 2021): an image is cut into patches, each a vector of channels.
// Layers mix in turn over patches and over channels.
#pragma once

#include <echelon/nn/stack.h>

#include <cstdint>

struct MixerOptions {
  std::int64_t side = 16;            // of an image, in pixels
  std::int64_t patch = 4;            // of a patch, in pixels
  std::int64_t channels = 64;        // of a patch
  std::int64_t depth = 2;            // pairs of mixing layers
  std::int64_t patches_hidden = 64;  // hidden width of mixing over patches
  std::int64_t channels_hidden = 128;
  std::int64_t classes = 8;
};

echelon::Stack mixer(const MixerOptions& options);
