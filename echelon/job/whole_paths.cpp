#include "echelon/job/whole_paths.h"

#include <filesystem>
#include <string>

namespace echelon {

JobOptions with_whole_paths(JobOptions options) {
  const auto whole = [](const std::string& path) {
    return std::filesystem::absolute(path).lexically_normal().string();
  };
  const auto& source = options.data.source;
  for (auto* path : {source == "stdlib" || source == "random" ? nullptr : &options.data.source,
                     &options.data.validation_source, &options.data.tokenizer, &options.model.init,
                     &options.model.lora.init, &options.zero.offload_path, &options.comm.plan})
    if (path && !path->empty()) *path = whole(*path);
  for (std::string& entry : options.data.mix)
    if (!entry.starts_with("stdlib=")) entry = whole(entry);
  return options;
}

}  // namespace echelon
