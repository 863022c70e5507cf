// One JSON object (RFC 8259) as the text of its members, strictly: what the standard does not allow
// is refused, and so is nesting deeper than 64. Values are not converted: numbers stay as they are
// written.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "echelon/data/records/format.h"

namespace echelon {

enum class JsonKind { string, number, boolean, null, array, object };

struct JsonMember {
  std::string_view key;  // valid during the call
  JsonKind kind;
  std::string_view raw;  // as it is written, quotes included
};

// Calls `member` for each member in order. `text` must be UTF-8, one object, and blanks around it.
Malformed read_json_object(std::string_view text,
                           const std::function<void(const JsonMember& member)>& member);

// The string that a member of kind `string` is.
std::string json_string(std::string_view raw);

}  // namespace echelon
