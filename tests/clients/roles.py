"""The least role of every operation of both ports. An operation without a row here fails test_roles.py."""

import pathlib
import re

REPOSITORY = pathlib.Path(__file__).parents[2]
PROTOS = REPOSITORY / "crates/protocol/proto"

# Each role may do what those before it may. OPEN needs no key.
ROLES = ("infer", "read", "write", "admin")
OPEN = "open"

# Operations of /openapi.json by role.
OPERATIONS = {
    OPEN: "live ready healthz livez readyz",
    "infer": """
        serverMetadata listModelsV2 metadata modelReady modelConfig modelStatistics infer
        listModels modelStatus modelMetadata predict classify regress
        listRecognisers describeAudio recognise listSpeakers identifySpeaker verifySpeaker
    """,
    "read": """
        allStatistics rollout slowRequests listEvents listSegments repositoryIndex tfsMetrics metrics openapi showLog
        showTrace traceSettings modelTraceSettings tritonLog
        listImageCollections describeImages listImages searchImages missingImages rebuildProgress image thumbnail
        keypoints listCollections describeCollection collectionExists aliasesOf listAliases facet fetchPoints
        fetchPoint scrollPoints countPoints queryPoints queryPointsBatch queryPointGroups clusterStatus listIssues
        searchPoints searchPointsBatch searchPointGroups recommendPoints recommendPointsBatch recommendPointGroups
        discoverPoints discoverPointsBatch matrixPairs matrixOffsets
        listBackedUpCollections backupJob listBackups listSnapshots downloadSnapshot
        identifyPerson verifyPrints printTemplate extractFeatures imageFeatures duplicatesProgress duplicateGroups
    """,
    "write": """
        addImages putFeatures removeImages rebuildImages removeImage findDuplicates cancelDuplicates
        createCollection updateCollection deleteCollection changeAliases createIndex deleteIndex dropSegment
        upsertPoints setPayload overwritePayload deletePayload clearPayload updatePoints deletePoints
        updateVectors
        createSnapshot uploadSnapshot deleteSnapshot
    """,
    "admin": """
        load unload changeRollout enrolSpeaker forgetSpeaker changeLog clearIssues
        createBackup deleteBackup verifyBackups pruneBackups restoreBackup cloneCollection recoverSnapshot
        changeTrace traceSettingsChange modelTraceSettingsChange tritonLogChange
    """,
}

# Pages and their data, which the document leaves out.
PAGES = {path: "read" for path in ("/", "/try", "/vectors", "/nodes", "/audio", "/images", "/docs", "/events", "/page.js")} | {
    path: OPEN for path in ("/login", "/session", "/page.css", "/page-login.css", "/page-icon.svg")
}

# Methods of gRPC by role.
METHODS = {
    OPEN: """
        grpc.health.v1.Health/Check grpc.health.v1.Health/Watch
        inference.GRPCInferenceService/ServerLive inference.GRPCInferenceService/ServerReady
        qdrant.Qdrant/HealthCheck
    """,
    "infer": """
        inference.GRPCInferenceService/ModelReady inference.GRPCInferenceService/ServerMetadata
        inference.GRPCInferenceService/ModelMetadata inference.GRPCInferenceService/ModelInfer
        inference.GRPCInferenceService/ModelStreamInfer inference.GRPCInferenceService/ModelConfig
        tensorflow.serving.PredictionService/Predict tensorflow.serving.PredictionService/Classify
        tensorflow.serving.PredictionService/Regress tensorflow.serving.PredictionService/MultiInference
        tensorflow.serving.PredictionService/GetModelMetadata tensorflow.serving.ModelService/GetModelStatus
        grpc.reflection.v1.ServerReflection/ServerReflectionInfo
        grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo
    """,
    # The tests send empty messages, so ModelStatistics asks for all models. With a name it needs the role infer.
    "read": """
        grpc.health.v1.Health/List inference.GRPCInferenceService/RepositoryIndex
        inference.GRPCInferenceService/ModelStatistics
        qdrant.Collections/Get qdrant.Collections/List qdrant.Collections/CollectionExists
        qdrant.Collections/ListAliases qdrant.Collections/ListCollectionAliases
        qdrant.Points/Get qdrant.Points/Scroll qdrant.Points/Count qdrant.Points/Facet qdrant.Points/Query
        qdrant.Points/QueryBatch qdrant.Points/QueryGroups qdrant.Points/Search qdrant.Points/SearchBatch
        qdrant.Points/SearchGroups qdrant.Points/Recommend qdrant.Points/RecommendBatch
        qdrant.Points/RecommendGroups qdrant.Points/Discover qdrant.Points/DiscoverBatch
        qdrant.Points/SearchMatrixPairs qdrant.Points/SearchMatrixOffsets
        qdrant.Snapshots/List qdrant.Snapshots/ListFull
    """,
    "write": """
        qdrant.Collections/Create qdrant.Collections/Update qdrant.Collections/Delete qdrant.Collections/UpdateAliases
        qdrant.Points/Upsert qdrant.Points/Delete qdrant.Points/SetPayload qdrant.Points/OverwritePayload
        qdrant.Points/DeletePayload qdrant.Points/ClearPayload qdrant.Points/CreateFieldIndex
        qdrant.Points/DeleteFieldIndex qdrant.Points/UpdateBatch qdrant.Points/UpdateVectors qdrant.Points/DeleteVectors
        qdrant.Snapshots/Create qdrant.Snapshots/Delete
    """,
    # Methods that the server does not have need an administrator's key, as unknown routes do.
    "admin": """
        qdrant.Collections/CollectionClusterInfo qdrant.Collections/UpdateCollectionClusterSetup
        qdrant.Collections/CreateShardKey qdrant.Collections/DeleteShardKey qdrant.Collections/ListShardKeys
        qdrant.Points/CreateVectorName qdrant.Points/DeleteVectorName
        qdrant.Snapshots/CreateFull qdrant.Snapshots/DeleteFull
        inference.GRPCInferenceService/RepositoryModelLoad inference.GRPCInferenceService/RepositoryModelUnload
        tensorflow.serving.ModelService/HandleReloadConfigRequest
        inference.GRPCInferenceService/TraceSetting inference.GRPCInferenceService/LogSettings
    """,
}


def by_name(table: dict[str, str]) -> dict[str, str]:
    """Returns the role of each name."""
    rows = [(name, role) for role, names in table.items() for name in names.split()]
    roles = dict(rows)
    assert len(roles) == len(rows), "a name has two rows"
    return roles


def permits(held: str | None, needed: str) -> bool:
    return needed == OPEN or (held is not None and ROLES.index(held) >= ROLES.index(needed))


def grpc_methods() -> list[str]:
    """Returns the methods of all services in the .proto files."""
    methods = []
    for file in sorted(PROTOS.glob("*.proto")):
        text = file.read_text()
        package = re.search(r"^package ([\w.]+);", text, re.MULTILINE)
        for service in re.finditer(r"^service (\w+) \{(.*?)^\}", text, re.MULTILINE | re.DOTALL):
            names = re.findall(r"\brpc (\w+)", service.group(2))
            methods += [f"{package.group(1)}.{service.group(1)}/{name}" for name in names]
    return methods
