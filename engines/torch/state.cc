#include "state.h"

#include <unordered_map>

#include <ATen/ATen.h>

namespace {

using c10::IValue;
using c10::ivalue::Object;
using millpond::Storages;
using ObjectPtr = c10::intrusive_ptr<Object>;

bool holds(const Storages &storages, const at::Tensor &tensor) {
  return tensor.defined() && tensor.has_storage() &&
         storages.count(tensor.storage().unsafeGetStorageImpl()) > 0;
}

void add_tensors(const IValue &value, Storages &storages) {
  if (value.isTensor()) {
    const auto &tensor = value.toTensor();
    if (tensor.defined() && tensor.has_storage()) {
      storages.insert(tensor.storage().unsafeGetStorageImpl());
    }
  } else if (value.isObject()) {
    for (const auto &slot : value.toObject()->slots()) {
      add_tensors(slot, storages);
    }
  } else if (value.isTuple()) {
    for (const auto &element : value.toTupleRef().elements()) {
      add_tensors(element, storages);
    }
  } else if (value.isList()) {
    for (const auto &element : value.toListRef()) {
      add_tensors(element, storages);
    }
  } else if (value.isGenericDict()) {
    for (const auto &entry : value.toGenericDict()) {
      add_tensors(entry.value(), storages);
    }
  }
}

class Fork {
 public:
  explicit Fork(const Storages &written) : written_(written) {}

  ObjectPtr object(Object &from) {
    if (const auto known = objects_.find(&from); known != objects_.end()) {
      return known->second;
    }
    auto type = c10::StrongTypePtr(from.compilation_unit(), from.type());
    auto to = Object::create(std::move(type), from.slots().size());
    objects_.emplace(&from, to);
    for (size_t slot = 0; slot < from.slots().size(); slot++) {
      to->setSlot(slot, value(from.slots()[slot]));
    }
    return to;
  }

 private:
  IValue value(const IValue &from) {
    if (from.isTensor() && holds(written_, from.toTensor())) {
      return tensor(from.toTensor());
    }
    if (from.isList() || from.isGenericDict() || from.isTuple()) {
      copy_written(from);
      return from.deepcopy(values_);
    }
    // A C++ object (packed weights) has no attributes that a graph can set.
    const bool native = from.isObject() && from.toObjectRef().slots().size() == 1 &&
                        from.toObjectRef().slots()[0].isCapsule();
    return from.isObject() && !native ? IValue(object(from.toObjectRef())) : from;
  }

  // Copies the tensors of a container that are in written memory, so that they share it with the attributes.
  void copy_written(const IValue &from) {
    if (from.isTensor() && holds(written_, from.toTensor())) {
      values_.emplace(from, tensor(from.toTensor()));
    } else if (from.isTuple()) {
      for (const auto &element : from.toTupleRef().elements()) {
        copy_written(element);
      }
    } else if (from.isList()) {
      for (const auto &element : from.toListRef()) {
        copy_written(element);
      }
    } else if (from.isGenericDict()) {
      for (const auto &entry : from.toGenericDict()) {
        copy_written(entry.value());
      }
    }
  }

  at::Tensor tensor(const at::Tensor &from) {
    auto *storage = from.storage().unsafeGetStorageImpl();
    auto known = memory_.find(storage);
    if (known == memory_.end()) {
      const auto bytes = static_cast<int64_t>(storage->nbytes());
      const auto whole = at::empty({0}, from.options().dtype(at::kByte)).set_(from.storage(), 0, {bytes}, {1});
      known = memory_.emplace(storage, whole.clone()).first;
    }
    return at::empty({0}, from.options())
        .set_(known->second.storage(), from.storage_offset(), from.sizes(), from.strides());
  }

  const Storages &written_;
  std::unordered_map<Object *, ObjectPtr> objects_;
  std::unordered_map<c10::StorageImpl *, at::Tensor> memory_;
  IValue::HashIdentityIValueMap values_;
};

} // namespace

namespace millpond {

Storages written_storages(const torch::jit::Module &module, const Effects &effects) {
  Storages storages;
  if (effects.written_unknown) {
    add_tensors(IValue(module._ivalue()), storages);
  }
  for (const auto &path : effects.written) {
    IValue value(module._ivalue());
    for (const auto &name : path) {
      value = value.toObjectRef().getAttr(name);
    }
    add_tensors(value, storages);
  }
  return storages;
}

ObjectPtr fork_object(Object &object, const Storages &written) { return Fork(written).object(object); }

} // namespace millpond
