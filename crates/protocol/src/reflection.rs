//! gRPC's server reflection: describes the services to clients that have no `.proto` files.
//!
//! Descriptors come from `proto/`. Messages of TensorFlow Serving have fewer fields there than in
//! its own files.

use std::collections::BTreeMap;

use base::ErrorKind;
use prost_reflect::{DescriptorPool, FileDescriptor};

use crate::generated::DESCRIPTORS;
use crate::grpc::reflection::v1::server_reflection_request::MessageRequest;
use crate::grpc::reflection::v1::server_reflection_response::MessageResponse;
use crate::grpc::reflection::v1::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
    ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};

/// Returns the full names of all gRPC services.
pub fn services() -> impl Iterator<Item = String> {
    DESCRIPTORS.services().map(|service| service.full_name().to_owned())
}

/// Returns true if `name` is the full name of a gRPC service.
pub fn is_service(name: &str) -> bool {
    DESCRIPTORS.get_service_by_name(name).is_some()
}

/// Answers one request of a stream. A name that is unknown is an answer too: `NOT_FOUND`.
pub fn respond(request: ServerReflectionRequest) -> ServerReflectionResponse {
    let answer = match &request.message_request {
        Some(MessageRequest::FileByFilename(name)) => {
            file(DESCRIPTORS.get_file_by_name(name), &format!("file \"{name}\""))
        }
        Some(MessageRequest::FileContainingSymbol(name)) => {
            file(file_of(&DESCRIPTORS, name), &format!("symbol \"{name}\""))
        }
        Some(MessageRequest::FileContainingExtension(extension)) => not_found(&format!(
            "extension {} of \"{}\"",
            extension.extension_number, extension.containing_type
        )),
        Some(MessageRequest::AllExtensionNumbersOfType(name)) => extensions(name),
        Some(MessageRequest::ListServices(_)) => {
            let service = services().map(|name| ServiceResponse { name }).collect();
            MessageResponse::ListServicesResponse(ListServiceResponse { service })
        }
        None => error(ErrorKind::InvalidArgument, "the request is empty".to_owned()),
    };
    ServerReflectionResponse {
        valid_host: request.host.clone(),
        original_request: Some(request),
        message_response: Some(answer),
    }
}

/// Returns the answer with a file and all files that it imports.
fn file(found: Option<FileDescriptor>, what: &str) -> MessageResponse {
    let Some(found) = found else { return not_found(what) };
    let mut files = BTreeMap::new();
    add_imports(&found, &mut files);
    files.remove(found.name());
    // Clients expect the requested file first.
    let all = std::iter::once(found).chain(files.into_values());
    MessageResponse::FileDescriptorResponse(FileDescriptorResponse {
        file_descriptor_proto: all.map(|file| file.encode_to_vec().into()).collect(),
    })
}

/// Adds `file` and all that it imports to `files`, by name.
fn add_imports(file: &FileDescriptor, files: &mut BTreeMap<String, FileDescriptor>) {
    if files.insert(file.name().to_owned(), file.clone()).is_none() {
        file.dependencies().for_each(|import| add_imports(&import, files));
    }
}

/// Returns the file of a service, message or enum, or of a method or field in one.
fn file_of(pool: &DescriptorPool, symbol: &str) -> Option<FileDescriptor> {
    let declared = |name: &str| {
        let service = pool.get_service_by_name(name).map(|service| service.parent_file());
        let message = || pool.get_message_by_name(name).map(|message| message.parent_file());
        let values = || pool.get_enum_by_name(name).map(|values| values.parent_file());
        service.or_else(message).or_else(values)
    };
    let member = || {
        let (parent, name) = symbol.rsplit_once('.')?;
        let method = pool
            .get_service_by_name(parent)
            .is_some_and(|service| service.methods().any(|method| method.name() == name));
        let field = || {
            pool.get_message_by_name(parent).is_some_and(|message| {
                message.get_field_by_name(name).is_some()
                    || message.oneofs().any(|oneof| oneof.name() == name)
            })
        };
        (method || field()).then(|| declared(parent)).flatten()
    };
    declared(symbol).or_else(member)
}

/// Returns the extensions of a message: these descriptors have none.
fn extensions(name: &str) -> MessageResponse {
    if DESCRIPTORS.get_message_by_name(name).is_none() {
        return not_found(&format!("message \"{name}\""));
    }
    MessageResponse::AllExtensionNumbersResponse(ExtensionNumberResponse {
        base_type_name: name.to_owned(),
        extension_number: Vec::new(),
    })
}

fn not_found(what: &str) -> MessageResponse {
    error(ErrorKind::NotFound, format!("no {what} is known here"))
}

fn error(kind: ErrorKind, error_message: String) -> MessageResponse {
    MessageResponse::ErrorResponse(ErrorResponse { error_code: kind.grpc_code(), error_message })
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_types::FileDescriptorProto;

    use super::*;

    fn answer(request: MessageRequest) -> MessageResponse {
        let request =
            ServerReflectionRequest { host: "h".to_owned(), message_request: Some(request) };
        let response = respond(request.clone());
        assert_eq!(response.original_request, Some(request));
        response.message_response.unwrap()
    }

    fn files(request: MessageRequest) -> Vec<String> {
        let MessageResponse::FileDescriptorResponse(files) = answer(request) else {
            return Vec::new();
        };
        let name =
            |file: &bytes::Bytes| FileDescriptorProto::decode(&**file).unwrap().name.unwrap();
        files.file_descriptor_proto.iter().map(name).collect()
    }

    #[test]
    fn every_service_is_listed() {
        let MessageResponse::ListServicesResponse(list) =
            answer(MessageRequest::ListServices(String::new()))
        else {
            panic!("no list");
        };
        let mut names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
        names.sort();
        assert_eq!(
            names,
            [
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection",
                "inference.GRPCInferenceService",
                "qdrant.Collections",
                "qdrant.Points",
                "qdrant.Qdrant",
                "qdrant.Snapshots",
                "tensorflow.serving.ModelService",
                "tensorflow.serving.PredictionService",
            ]
        );
        assert!(names.iter().all(|name| is_service(name)) && !is_service("inference"));
    }

    #[test]
    fn symbols_lead_to_files_with_their_imports() {
        for symbol in [
            "inference.GRPCInferenceService",
            "inference.GRPCInferenceService.ModelInfer",
            "inference.ModelInferRequest",
            "inference.ModelInferRequest.InferInputTensor",
            "inference.ModelInferRequest.model_name",
        ] {
            let files = files(MessageRequest::FileContainingSymbol(symbol.to_owned()));
            assert_eq!(files, ["inference.proto", "model_config.proto"], "{symbol}");
        }
        let values = "grpc.health.v1.HealthCheckResponse.ServingStatus";
        let found = files(MessageRequest::FileContainingSymbol(values.to_owned()));
        assert_eq!(found, ["health.proto"]);
        let found = files(MessageRequest::FileByFilename("tensorflow_serving.proto".to_owned()));
        assert_eq!(found[0], "tensorflow_serving.proto");
        assert!(found.contains(&"google/protobuf/any.proto".to_owned()), "{found:?}");
    }

    #[test]
    fn unknown_names_are_answered() {
        let unknown = || "inference.Nothing".to_owned();
        for request in [
            MessageRequest::FileByFilename(unknown()),
            MessageRequest::FileContainingSymbol(unknown()),
            MessageRequest::FileContainingSymbol("inference.ModelInferRequest.no".to_owned()),
            MessageRequest::AllExtensionNumbersOfType(unknown()),
        ] {
            let MessageResponse::ErrorResponse(error) = answer(request.clone()) else {
                panic!("{request:?}");
            };
            assert_eq!(error.error_code, 5, "{error:?}");
        }
        let known = MessageRequest::AllExtensionNumbersOfType("inference.ModelConfig".to_owned());
        assert!(matches!(answer(known), MessageResponse::AllExtensionNumbersResponse(_)));
    }
}
