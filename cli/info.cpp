#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "echelon/base/block_engine.h"
#include "echelon/base/build_config.h"
#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/base/safetensors.h"
#include "echelon/job/options.h"
#include "echelon/step/device.h"

namespace echelon::cli {
namespace {

void show_build() {
  fmt::print("echelon    {} ({})\n", ECHELON_VERSION, ECHELON_COMMIT);
  fmt::print("torch      {}, CPU kernels for {}, {} threads\n", ECHELON_TORCH_VERSION,
             at::get_cpu_capability(), at::get_num_threads());
  if (cuda_built()) {
    fmt::print("cuda       built in, {} GPU{} here\n", cuda_devices(),
               cuda_devices() == 1 ? "" : "s");
  } else {
    fmt::print("cuda       not built in: {}\n", ECHELON_NO_CUDA_REASON);
  }
  fmt::print("xz         {}\n",
             ECHELON_HAS_LZMA ? "built in" : "not built in: liblzma was missing");
  fmt::print("io_uring   {}\n", uring_built() ? "built in" : "not built in: liburing was missing");
  fmt::print("text       {} (data.source=stdlib)\n", ECHELON_STDLIB_DIR);
}

void show_options() {
  JobOptions job;
  fmt::print(
      "# Configuration\n\nOptions come from one TOML file (`echelon train job.toml`) and from `--set KEY=VALUE`. `echelon train "
      "--print-config`\nprints a file to start from. `echelon info --options` prints this page.\n\n{}",
      to_markdown(fields_of(job)));
}

void show_file(std::filesystem::path path) {
  if (std::filesystem::is_directory(path)) path /= "model.safetensors";
  if (!std::filesystem::exists(path))
    throw InvalidArgument(fmt::format("there is no file {}", path.string()));
  const safetensors::Reader reader(path);
  std::uint64_t bytes = 0;
  double elements = 0;
  for (const auto& entry : reader.header().entries) {
    fmt::print("{:<5} {:<48} [{}]\n", entry.dtype, entry.name, fmt::join(entry.shape, ", "));
    bytes += entry.end - entry.begin;
    elements += static_cast<double>(entry.end - entry.begin) /
                static_cast<double>(safetensors::element_size(entry.dtype));
  }
  for (const auto& [key, value] : reader.header().metadata) fmt::print("{} = {}\n", key, value);
  fmt::print("{} tensors, {} elements, {}\n", reader.header().entries.size(), human_count(elements),
             human_bytes(bytes));
}

}  // namespace

void add_info(CLI::App& app, int& /*exit_code*/) {
  auto* command =
      app.add_subcommand("info", "Show what is built in, or the tensors of a safetensors file");
  auto path = std::make_shared<std::string>();
  auto options = std::make_shared<bool>(false);
  command->add_option("path", *path, "A .safetensors file, or a folder with model.safetensors")
      ->type_name("PATH");
  command->add_flag("--options", *options,
                    "Show every option of a training job as a Markdown page");
  command->footer(
      "Examples:\n  echelon info                                       versions, devices, optional parts\n"
      "  echelon info runs/2026-01-31-120000/weights        names, types and shapes of the tensors\n"
      "  echelon info --options                             the reference of all options");
  command->callback([path, options] {
    *options ? show_options() : path->empty() ? show_build() : show_file(*path);
  });
}

}  // namespace echelon::cli
