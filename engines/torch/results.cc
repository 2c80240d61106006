#include "results.h"

#include <ATen/ATen.h>

namespace {

using millpond::Result;

constexpr const char *kOnly = "output";

std::string at_index(const std::string &prefix, size_t index) {
  return (prefix.empty() ? kOnly : prefix) + ("_" + std::to_string(index));
}

std::string at_key(const std::string &prefix, const std::string &key) {
  return prefix.empty() ? key : prefix + "_" + key;
}

// Returns the name of element `index` of a tuple: the name of its field if it has one.
std::string in_tuple(const std::string &prefix, const c10::TypePtr &type, size_t index) {
  const auto tuple = type ? type->cast<c10::TupleType>() : nullptr;
  const auto names = tuple ? tuple->names() : std::nullopt;
  return names ? at_key(prefix, std::string(names->at(index))) : at_index(prefix, index);
}

bool names_below(const c10::TypePtr &type, const std::string &prefix, std::vector<std::string> &names) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
      names.push_back(prefix.empty() ? kOnly : prefix);
      return true;
    case c10::TypeKind::TupleType: {
      const auto elements = type->containedTypes();
      for (size_t i = 0; i < elements.size(); i++) {
        if (!names_below(elements[i], in_tuple(prefix, type, i), names)) {
          return false;
        }
      }
      return true;
    }
    default:
      return false;
  }
}

void collect(const c10::IValue &value, const c10::TypePtr &type, const std::string &prefix, bool shared,
             std::vector<Result> &results) {
  const auto name = [&] { return prefix.empty() ? std::string(kOnly) : prefix; };
  const auto scalar = [&](const auto &number, c10::ScalarType dtype) {
    results.push_back({name(), at::scalar_tensor(number, at::TensorOptions(dtype))});
  };
  if (value.isTensor()) {
    results.push_back({name(), millpond::outgoing(value.toTensor(), shared)});
  } else if (value.isBool()) {
    scalar(value.toBool(), at::kBool);
  } else if (value.isInt()) {
    scalar(value.toInt(), at::kLong);
  } else if (value.isDouble()) {
    scalar(value.toDouble(), at::kDouble);
  } else if (value.isTuple()) {
    const auto &elements = value.toTupleRef().elements();
    const auto tuple = type->kind() == c10::TypeKind::TupleType ? type : value.type();
    for (size_t i = 0; i < elements.size(); i++) {
      collect(elements[i], tuple->containedType(i), in_tuple(prefix, tuple, i), shared, results);
    }
  } else if (value.isList()) {
    const auto list = value.toListRef();
    for (size_t i = 0; i < list.size(); i++) {
      collect(list[i], list[i].type(), at_index(prefix, i), shared, results);
    }
  } else if (value.isGenericDict()) {
    for (const auto &entry : value.toGenericDict()) {
      TORCH_CHECK(entry.key().isString(), "forward returns a dictionary whose keys are no strings");
      collect(entry.value(), entry.value().type(), at_key(prefix, entry.key().toStringRef()), shared, results);
    }
  } else if (!value.isNone()) {
    TORCH_CHECK(false, "forward returns a ", value.tagKind(), "; only tensors can be served");
  }
}

} // namespace

namespace millpond {

std::optional<std::vector<std::string>> result_names(const c10::TypePtr &type) {
  std::vector<std::string> names;
  if (!names_below(type, "", names)) {
    return std::nullopt;
  }
  return names;
}

at::Tensor outgoing(const at::Tensor &tensor, bool shared) {
  TORCH_CHECK(tensor.defined(), "forward returns a tensor that is not there");
  TORCH_CHECK(tensor.layout() == c10::kStrided && !tensor.is_quantized(),
              "forward returns a tensor that is sparse or quantized; only dense ones can be served");
  const at::Tensor plain = tensor.resolve_conj().resolve_neg();
  if (plain.is_cpu()) {
    return shared ? plain.clone(at::MemoryFormat::Contiguous) : plain.contiguous();
  }
  const auto pinned = at::TensorOptions(plain.scalar_type()).pinned_memory(true);
  return at::empty(plain.sizes(), pinned).copy_(plain.contiguous(), /*non_blocking=*/true);
}

std::vector<Result> results_of(const c10::IValue &value, const c10::TypePtr &type, bool shared) {
  std::vector<Result> results;
  collect(value, type, "", shared, results);
  return results;
}

} // namespace millpond
