// Files of records. The first byte of an input chooses the format, the rest is the file. Whatever
// is accepted is read in all columns, and objects of JSON are compared with what nlohmann's parser
// makes of them.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "echelon/base/descriptor.h"
#include "echelon/base/error.h"
#include "echelon/base/utf8.h"
#include "echelon/data/records/json_object.h"
#include "echelon/data/records/records.h"

namespace {

using echelon::JsonKind;
using nlohmann::json;

[[noreturn]] void complain(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

void read_all(std::string_view text, echelon::RecordFormat format, bool header) {
  const echelon::Descriptor file(::memfd_create("records", MFD_CLOEXEC));
  if (::write(file.get(), text.data(), text.size()) != ssize_t(text.size())) complain("no memory");
  try {
    const echelon::Records records("/proc/self/fd/" + std::to_string(file.get()),
                                   {.format = format, .header = header});
    std::vector<int> columns;
    for (std::size_t i = 0; i < records.columns().size(); ++i) columns.push_back(int(i));
    for (std::int64_t i = 0; i < records.size(); ++i) {
      if (records.place(i).empty()) complain("a record without a place");
      if (records.read(i, columns).size() != columns.size()) complain("a record of another width");
    }
  } catch (const echelon::Corrupt&) {
  }
}

// JSON that nests deeper than we read is refused by us alone.
int depth_of(const json& value) {
  int most = 0;
  if (value.is_structured())
    for (const auto& one : value) most = std::max(most, depth_of(one));
  return most + value.is_structured();
}

void compare(std::string_view text) {
  if (echelon::utf8_prefix(text) != text.size()) return;
  std::vector<std::pair<std::string, std::string>> strings;
  const auto wrong = echelon::read_json_object(text, [&](const echelon::JsonMember& member) {
    if (member.kind == JsonKind::string)
      strings.emplace_back(member.key, echelon::json_string(member.raw));
  });
  // nlohmann skips a byte order mark, which Records has removed before, and ends at a NUL.
  if (text.starts_with("\xEF\xBB\xBF") || text.find('\0') != text.npos) return;
  json theirs;
  bool fine = true;
  try {
    theirs = json::parse(text);
    fine = theirs.is_object() && depth_of(theirs) <= 64;
  } catch (const json::parse_error&) {
    fine = false;
  } catch (
      const json::out_of_range&) {  // a number beyond double is fine for us: it is not converted
    return;
  }
  if (fine != wrong.what.empty()) complain("one parser accepts what the other refuses");
  if (!fine) return;
  std::map<std::string, std::string> last;
  for (auto& [key, value] : strings) last[key] = value;
  for (const auto& [key, value] : last)
    if (theirs.at(key).is_string() && theirs.at(key) != value) complain("strings differ");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  switch (bytes[0] % 5) {
    case 0:
      read_all(text, echelon::RecordFormat::tsv, bytes[0] & 64);
      break;
    case 1:
      read_all(text, echelon::RecordFormat::csv, bytes[0] & 64);
      break;
    case 2:
      read_all(text, echelon::RecordFormat::jsonl, true);
      break;
    default:
      compare(text);
  }
  return 0;
}
