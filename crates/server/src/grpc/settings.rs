//! Triton's calls that show and change settings of traces and of the log.

use std::sync::Arc;

use base::{Error, Result};
use protocol::inference as pb;
use protocol::inference::log_settings_request::setting_value::ParameterChoice;
use protocol::oip::settings::{LogSettingValue, TraceSettingValues, changed_log, log_settings};
use transport::RequestBody;
use transport::access::AdminRequest;

use super::call::{SmallCall, answer};
use super::response::Response;
use crate::log_filter::{self, LOG_ADMIN_ACTION, LOG_ADMIN_CALL};
use crate::models::ModelsState;
use crate::trace_settings::{TRACE_ADMIN_ACTION, TRACE_ADMIN_CALL};

pub(super) async fn trace(
    state: Arc<ModelsState>,
    request: http::Request<RequestBody>,
) -> Response {
    answer(state.clone(), request, async |call: SmallCall<pb::TraceSettingRequest>| {
        let pb::TraceSettingRequest { settings, model_name } = call.message.clone();
        if !model_name.is_empty() && state.lifecycle.catalog().status(&model_name).is_none() {
            return Err(Error::not_found(format!("there is no model \"{model_name}\"")));
        }
        if !settings.is_empty() {
            let request = AdminRequest {
                calls: TRACE_ADMIN_CALL,
                action: TRACE_ADMIN_ACTION,
                subject: &model_name,
                caller: call.caller(),
            };
            let settings: TraceSettingValues =
                settings.into_iter().map(|(name, values)| (name, values.value)).collect();
            let changed = async { state.traces.change_triton(&model_name, &settings) };
            state.access.admin(request, changed).await?;
        }
        let shown = |(name, value)| (name, pb::trace_setting_response::SettingValue { value });
        let settings = state.traces.triton(&model_name).into_iter().map(shown).collect();
        Ok(pb::TraceSettingResponse { settings })
    })
    .await
}

pub(super) async fn log(state: Arc<ModelsState>, request: http::Request<RequestBody>) -> Response {
    answer(state.clone(), request, async |call: SmallCall<pb::LogSettingsRequest>| {
        let filter = log_filter::changeable(&state.log)?;
        if !call.message.settings.is_empty() {
            let request = AdminRequest {
                calls: LOG_ADMIN_CALL,
                action: LOG_ADMIN_ACTION,
                subject: "",
                caller: call.caller(),
            };
            let settings = call.message.settings.clone();
            let changed = async {
                let settings = settings.into_iter().map(setting).collect::<Result<_>>()?;
                log_filter::change(filter, &changed_log(&filter.get(), &settings)?)
            };
            state.access.admin(request, changed).await?;
        }
        let settings = log_settings(&filter.get()).into_iter().map(shown).collect();
        Ok(pb::LogSettingsResponse { settings })
    })
    .await
}

fn setting(
    entry: (String, pb::log_settings_request::SettingValue),
) -> Result<(String, LogSettingValue)> {
    let (name, value) = entry;
    let value = match value.parameter_choice {
        Some(ParameterChoice::BoolParam(flag)) => LogSettingValue::Flag(flag),
        Some(ParameterChoice::Uint32Param(number)) => LogSettingValue::Number(number),
        Some(ParameterChoice::StringParam(text)) => LogSettingValue::Text(text),
        None => return Err(Error::invalid(format!("the setting {name} has no value"))),
    };
    Ok((name, value))
}

fn shown(entry: (String, LogSettingValue)) -> (String, pb::log_settings_response::SettingValue) {
    use pb::log_settings_response::setting_value::ParameterChoice;
    let choice = match entry.1 {
        LogSettingValue::Flag(flag) => ParameterChoice::BoolParam(flag),
        LogSettingValue::Number(number) => ParameterChoice::Uint32Param(number),
        LogSettingValue::Text(text) => ParameterChoice::StringParam(text),
    };
    let value = pb::log_settings_response::SettingValue { parameter_choice: Some(choice) };
    (entry.0, value)
}
