#include "echelon/collective/link_cache.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "echelon/base/checksum.h"
#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/json_reader.h"
#include "echelon/base/log.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;

constexpr double keep_for = 24 * 3600;  // seconds

fs::path cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value == nullptr ? "" : value);
  };
  if (const auto folder = variable("ECHELON_CACHE"); !folder.empty()) return folder;
  if (const auto folder = variable("XDG_CACHE_HOME"); !folder.empty()) return folder / "echelon";
  if (const auto folder = variable("HOME"); !folder.empty()) return folder / ".cache" / "echelon";
  return {};
}

}  // namespace

LinkCache::LinkCache(std::string links) : links_(std::move(links)) {
  if (const fs::path folder = cache_folder(); !folder.empty())
    file_ = folder / fmt::format("links-{:016x}.json", checksum(std::as_bytes(std::span(links_))));
}

std::optional<Figures> LinkCache::read() const {
  if (std::error_code none; file_.empty() || !fs::exists(file_, none)) return {};
  try {
    const auto kept = JsonReader::parse(read_file(file_), file_.string());
    Figures figures = Figures::read(kept);
    if (kept.at("links").text() != links_ || figures.age() > keep_for) return {};
    figures.reused = true;
    return figures;
  } catch (const std::exception& error) {
    log::debug(fmt::format("links are measured again: {}", error.what()));
    return {};
  }
}

void LinkCache::write(const Figures& figures) const {
  if (file_.empty()) return;
  if (figures.spread > steady) {
    log::info(fmt::format(
        "links were measured while they or this machine were busy (some messages took {:.1f} times "
        "as long as others): the next job measures them again",
        figures.spread));
    return discard();
  }
  try {
    auto all = nlohmann::ordered_json::parse(figures.json());
    all["links"] = links_;
    fs::create_directories(file_.parent_path());
    write_file(file_, all.dump() + "\n");
  } catch (const std::exception& error) {  // a read-only home
    log::debug(fmt::format("figures of the links are not kept: {}", error.what()));
  }
}

void LinkCache::discard() const {
  std::error_code none;
  if (!file_.empty()) fs::remove(file_, none);
}

}  // namespace echelon
