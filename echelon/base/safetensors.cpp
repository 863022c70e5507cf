#include "echelon/base/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "echelon/base/error.h"
#include "echelon/base/file.h"

namespace echelon::safetensors {

namespace {

using nlohmann::json;

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t largest_header = 100'000'000;
// The format requires 8. Mapped tensors are passed to vector code directly, so this is a cache
// line.
constexpr std::uint64_t data_alignment = 64;
constexpr std::uint64_t largest_number = std::numeric_limits<std::int64_t>::max();

constexpr auto element_sizes = std::to_array<std::pair<std::string_view, std::size_t>>({
    {"BOOL", 1},
    {"U8", 1},
    {"I8", 1},
    {"F8_E5M2", 1},
    {"F8_E4M3", 1},
    {"F8_E8M0", 1},
    {"I16", 2},
    {"U16", 2},
    {"F16", 2},
    {"BF16", 2},
    {"I32", 4},
    {"U32", 4},
    {"F32", 4},
    {"F64", 8},
    {"I64", 8},
    {"U64", 8},
    {"C64", 8},
});

// A name from a file as a JSON string in ASCII, so that it can neither disturb a terminal nor run
// on for pages.
std::string in_quotes(std::string_view name) {
  constexpr std::size_t longest = 80;
  const bool cut = name.size() > longest;
  const json text(std::string(name.substr(0, longest)));
  return text.dump(-1, ' ', true, json::error_handler_t::replace) + (cut ? "..." : "");
}

// Bytes of a tensor; nothing if the number does not fit.
std::optional<std::uint64_t> byte_size(std::string_view dtype,
                                       const std::vector<std::int64_t>& shape) {
  std::uint64_t product = 1;
  const auto multiply = [&](std::uint64_t factor) {
    return !__builtin_mul_overflow(product, factor, &product) && product <= largest_number;
  };
  for (const auto extent : shape) {
    if (extent < 0 || !multiply(static_cast<std::uint64_t>(extent))) return std::nullopt;
  }
  if (!multiply(element_size(dtype))) return std::nullopt;
  return product;
}

// Parses the header's JSON event by event. The grammar is three levels deep, and an event in the
// wrong place is an error at once, so hostile nesting costs nothing. Unlike in a parsed document,
// duplicate keys are detected.
class HeaderEvents : public nlohmann::json_sax<json> {
 public:
  explicit HeaderEvents(std::string_view where) : where_(where) {}

  std::vector<Entry> entries;
  Metadata metadata;

  bool start_object(std::size_t) override {
    if (place_ == Place::start) {
      place_ = Place::top;
    } else if (place_ == Place::metadata_value) {
      place_ = Place::metadata;
    } else if (place_ == Place::tensor_value) {
      place_ = Place::tensor;
    } else {
      misplaced("an object");
    }
    return true;
  }

  bool key(std::string& name) override {
    if (place_ == Place::top) {
      if (!names_.insert(name).second)
        corrupt(fmt::format("the key {} comes twice", in_quotes(name)));
      if (name == "__metadata__") {
        place_ = Place::metadata_value;
      } else {
        place_ = Place::tensor_value;
        entries.push_back({.name = name, .dtype = {}, .shape = {}});
        has_dtype_ = has_shape_ = has_offsets_ = false;
      }
    } else if (place_ == Place::metadata) {
      metadata_key_ = name;
      if (metadata.contains(name))
        corrupt(fmt::format("the key {} of __metadata__ comes twice", in_quotes(name)));
    } else {
      tensor_key(name);
    }
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::metadata) {
      metadata.emplace(metadata_key_, value);
    } else if (place_ == Place::dtype_value) {
      if (element_size(value) == 0) {
        corrupt(fmt::format("{} has the unknown type {}", tensor_name(), in_quotes(value)));
      }
      entries.back().dtype = value;
      place_ = Place::tensor;
    } else {
      misplaced("a string");
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::shape_value) {
      place_ = Place::shape;
    } else if (place_ == Place::offsets_value) {
      place_ = Place::offsets;
    } else {
      misplaced("an array");
    }
    return true;
  }

  bool number_unsigned(std::uint64_t value) override {
    if (place_ != Place::shape && place_ != Place::offsets) misplaced("a number");
    if (value > largest_number) {
      corrupt(
          fmt::format("{} has the number {}, which does not fit 63 bits", tensor_name(), value));
    }
    if (place_ == Place::shape) {
      entries.back().shape.push_back(static_cast<std::int64_t>(value));
    } else if (offsets_ == 0) {
      entries.back().begin = value;
      ++offsets_;
    } else if (offsets_ == 1) {
      entries.back().end = value;
      ++offsets_;
    } else {
      corrupt(fmt::format("{} has more than two data_offsets", tensor_name()));
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets && offsets_ != 2) {
      corrupt(fmt::format("{} has fewer than two data_offsets", tensor_name()));
    }
    place_ = Place::tensor;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor && !(has_dtype_ && has_shape_ && has_offsets_)) {
      corrupt(fmt::format("{} lacks its {}", tensor_name(),
                          !has_dtype_   ? "dtype"
                          : !has_shape_ ? "shape"
                                        : "data_offsets"));
    }
    place_ = place_ == Place::top ? Place::end : Place::top;
    return true;
  }

  bool null() override { misplaced("null"); }
  bool boolean(bool) override { misplaced("a boolean"); }
  bool number_integer(std::int64_t) override { misplaced("a negative number"); }
  bool number_float(double, const std::string&) override {
    misplaced("a number that is no integer of 63 bits");
  }
  bool binary(json::binary_t&) override { misplaced("binary data"); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    corrupt(fmt::format("the header is not JSON at byte {}", length_bytes + position));
  }

 private:
  // Where in the header the next event belongs; "_value": after a key, before its value.
  enum class Place {
    start,
    top,
    metadata_value,
    metadata,
    tensor_value,
    tensor,
    dtype_value,
    shape_value,
    shape,
    offsets_value,
    offsets,
    end
  };

  void tensor_key(const std::string& name) {
    const auto once = [&](bool& has) {
      if (std::exchange(has, true)) corrupt(fmt::format("{} has {} twice", tensor_name(), name));
    };
    if (name == "dtype") {
      once(has_dtype_);
      place_ = Place::dtype_value;
    } else if (name == "shape") {
      once(has_shape_);
      place_ = Place::shape_value;
    } else if (name == "data_offsets") {
      once(has_offsets_);
      offsets_ = 0;
      place_ = Place::offsets_value;
    } else {
      corrupt(fmt::format("{} has the unknown key {}", tensor_name(), in_quotes(name)));
    }
  }

  std::string tensor_name() const { return "tensor " + in_quotes(entries.back().name); }

  [[noreturn]] void corrupt(std::string_view what) const {
    throw Corrupt(fmt::format("{}: {}", where_, what));
  }

  [[noreturn]] void misplaced(std::string_view what) const {
    switch (place_) {
      case Place::metadata_value:
        corrupt(fmt::format("__metadata__ is {} where it should be an object", what));
      case Place::metadata:
        corrupt(fmt::format("the value of {} in __metadata__ is {} where only strings are allowed",
                            in_quotes(metadata_key_), what));
      case Place::tensor_value:
        corrupt(fmt::format("{} is {} where it should be an object", tensor_name(), what));
      case Place::dtype_value:
        corrupt(
            fmt::format("the dtype of {} is {} where it should be a string", tensor_name(), what));
      case Place::shape_value:
      case Place::shape:
        corrupt(fmt::format(
            "the shape of {} has {} where it should be a list of integers of at least 0",
            tensor_name(), what));
      case Place::offsets_value:
      case Place::offsets:
        corrupt(
            fmt::format("data_offsets of {} has {} where it should be two integers of at least 0",
                        tensor_name(), what));
      default:
        corrupt(fmt::format("the header has {} where its grammar has none", what));
    }
  }

  std::string_view where_;
  Place place_ = Place::start;
  std::unordered_set<std::string> names_;
  std::string metadata_key_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  int offsets_ = 0;
};

std::uint64_t read_length(std::span<const std::byte> bytes) {
  std::uint64_t length = 0;
  for (std::size_t i = length_bytes; i-- > 0;)
    length = length << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return length;
}

// The beginning of a file, up to the end of its header. If no header can be as long as the file
// says, returns it without the header, and the parser says why.
std::vector<std::byte> up_to_header(const InputFile& file) {
  std::vector<std::byte> bytes(std::min(file.size(), length_bytes));
  file.read(0, bytes);
  if (bytes.size() < length_bytes) return bytes;
  const auto length = read_length(bytes);
  if (length > largest_header || length > file.size() - length_bytes) return bytes;
  bytes.resize(length_bytes + length);
  file.read(0, bytes);
  return bytes;
}

// Checks that every tensor fills its range, and that the ranges follow each other from the first
// byte of the data to the last.
void check_ranges(const std::vector<Entry>& entries, std::uint64_t data_bytes,
                  std::string_view where) {
  std::uint64_t covered = 0;
  for (const auto& entry : entries) {
    const auto corrupt = [&](const std::string& what) {
      throw Corrupt(fmt::format("{}: tensor {} at bytes {} to {} {}", where, in_quotes(entry.name),
                                entry.begin, entry.end, what));
    };
    if (entry.end < entry.begin) corrupt("ends before it begins");
    if (entry.begin < covered)
      corrupt(fmt::format("overlaps the one before it, which ends at {}", covered));
    if (entry.begin > covered) corrupt(fmt::format("leaves a hole after byte {}", covered));
    const auto size = byte_size(entry.dtype, entry.shape);
    if (!size) corrupt("has a shape whose product does not fit 63 bits");
    if (*size != entry.end - entry.begin) {
      corrupt(fmt::format("should have {} bytes by its shape [{}] of {}", *size,
                          fmt::join(entry.shape, ", "), entry.dtype));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    throw Corrupt(
        fmt::format("{}: the tensors end at byte {} of the data, but the file has {} bytes of data",
                    where, covered, data_bytes));
  }
}

// The header's text, padded with spaces so that the data begins aligned. Fills in the byte ranges.
std::string header_text(std::vector<Entry>& entries, const Metadata& metadata) {
  std::vector<std::string> items;
  if (!metadata.empty()) items.push_back("\"__metadata__\":" + json(metadata).dump());
  std::unordered_set<std::string_view> names = {"__metadata__"};
  std::uint64_t offset = 0;
  for (auto& entry : entries) {
    if (!names.insert(entry.name).second) {
      throw InvalidArgument(fmt::format("a safetensors file cannot have the name {} {}",
                                        in_quotes(entry.name),
                                        entry.name == "__metadata__" ? "for a tensor" : "twice"));
    }
    if (element_size(entry.dtype) == 0) {
      throw InvalidArgument(
          fmt::format("tensor {} has the type {}, which safetensors does not know",
                      in_quotes(entry.name), in_quotes(entry.dtype)));
    }
    const auto size = byte_size(entry.dtype, entry.shape);
    if (!size || *size > largest_number - offset) {
      throw InvalidArgument(
          fmt::format("tensor {} has the shape [{}], whose bytes cannot be counted",
                      in_quotes(entry.name), fmt::join(entry.shape, ", ")));
    }
    entry.begin = offset;
    entry.end = offset += *size;
    items.push_back(fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                                json(entry.name).dump(), entry.dtype, fmt::join(entry.shape, ","),
                                entry.begin, entry.end));
  }
  auto text = fmt::format("{{{}}}", fmt::join(items, ","));
  const auto unpadded = length_bytes + text.size();
  text.append((data_alignment - unpadded % data_alignment) % data_alignment, ' ');
  if (text.size() > largest_header) {
    throw InvalidArgument(fmt::format(
        "the names and shapes of {} tensors make a header of {} bytes; safetensors allows {}",
        entries.size(), text.size(), largest_header));
  }
  return text;
}

}  // namespace

std::size_t element_size(std::string_view dtype) {
  const auto* const found =
      std::ranges::find(element_sizes, dtype, &std::pair<std::string_view, std::size_t>::first);
  return found == element_sizes.end() ? 0 : found->second;
}

Header parse_header(std::span<const std::byte> file, std::uint64_t file_bytes,
                    std::string_view where) {
  const auto corrupt = [&](const std::string& what) {
    throw Corrupt(fmt::format("{}: {}", where, what));
  };
  if (file_bytes < length_bytes) {
    corrupt(fmt::format("a safetensors file begins with 8 bytes of length, but this has {} bytes",
                        file_bytes));
  }
  const auto length = read_length(file);
  if (length > largest_header) {
    corrupt(fmt::format("the header would have {} bytes; safetensors allows {}", length,
                        largest_header));
  }
  if (length > file_bytes - length_bytes) {
    corrupt(fmt::format("the header has {} bytes, but the file ends after {}", length,
                        file_bytes - length_bytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + length_bytes, length);
  if (!text.starts_with('{')) corrupt("the header does not begin with '{'");
  // The parser would accept other white space, and take a zero byte for the end of its input.
  const auto last = text.find_last_not_of(' ');
  if (text[last] != '}')
    corrupt(fmt::format("the header does not end with '}}' at byte {}", length_bytes + last));
  if (const auto zero = text.find('\0'); zero != std::string_view::npos) {
    corrupt(fmt::format("the header has a zero byte at byte {}", length_bytes + zero));
  }

  HeaderEvents events(where);
  json::sax_parse(text.begin(), text.end(), &events);
  std::ranges::stable_sort(events.entries, {},
                           [](const Entry& e) { return std::pair(e.begin, e.end); });
  check_ranges(events.entries, file_bytes - length_bytes - length, where);
  return {std::move(events.entries), std::move(events.metadata), length_bytes + length};
}

Reader::Reader(const std::filesystem::path& path)
    : file_(path),
      header_(parse_header(up_to_header(file_), file_.size(), path.string())),
      by_name_(header_.entries.size()) {
  std::iota(by_name_.begin(), by_name_.end(), std::size_t{0});
  std::ranges::sort(by_name_, {}, [this](std::size_t i) -> const std::string& {
    return header_.entries[i].name;
  });
}

const Entry* Reader::find(std::string_view name) const {
  const auto name_of = [this](std::size_t i) -> std::string_view {
    return header_.entries[i].name;
  };
  const auto found = std::ranges::lower_bound(by_name_, name, {}, name_of);
  return found != by_name_.end() && name_of(*found) == name ? &header_.entries[*found] : nullptr;
}

void Reader::read(const Entry& entry, std::span<std::byte> out) const {
  if (out.size() > entry.end - entry.begin)
    throw InvalidArgument(fmt::format("{} bytes of tensor {} were asked for, which has {}",
                                      out.size(), in_quotes(entry.name), entry.end - entry.begin));
  file_.read(header_.data_offset + entry.begin, out);
}

void write(const std::filesystem::path& path, std::vector<Entry> entries, const Metadata& metadata,
           const std::function<std::span<const std::byte>(std::size_t)>& bytes) {
  std::string text;
  try {
    text = header_text(entries, metadata);
  } catch (const json::exception&) {
    throw InvalidArgument(
        fmt::format("cannot write {}: names and metadata must be UTF-8", path.string()));
  }
  write_file(path, [&](FileWriter& file) {
    std::array<std::byte, length_bytes> length;
    for (std::size_t i = 0; i < length_bytes; ++i)
      length[i] = static_cast<std::byte>(text.size() >> 8 * i);
    file.write(length);
    file.write(text);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto contents = bytes(i);
      if (contents.size() != entries[i].end - entries[i].begin) {
        throw InvalidArgument(fmt::format(
            "tensor {} should have {} bytes by its shape, but {} were given",
            in_quotes(entries[i].name), entries[i].end - entries[i].begin, contents.size()));
      }
      file.write(contents);
    }
  });
}

}  // namespace echelon::safetensors
