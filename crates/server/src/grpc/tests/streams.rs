//! Requests of one stream that run at the same time.

use super::*;

fn pauses(served: &Loopback, kind: &'static str) -> u64 {
    served.server.core.metrics.stream_pauses.get_or_create(&metrics::KindLabels { kind }).get()
}

/// Returns `count` requests whose ids are their numbers.
fn numbered(count: usize, elements: usize) -> Vec<pb::ModelInferRequest> {
    let named = |id: usize| pb::ModelInferRequest { id: id.to_string(), ..request(elements) };
    (0..count).map(named).collect()
}

#[test]
fn requests_of_a_stream_run_at_once_and_keep_their_order() {
    let dir = tempfile::tempdir().unwrap();
    // A slow first answer must not let the stream pause.
    let (served, engine) = served(dir.path(), |config| config.listeners.request_timeout = LONG);
    run(async {
        let (sender, receiver) = mpsc::channel(100);
        let requests = ReceiverStream::new(receiver);
        let mut answers = client!(served).model_stream_infer(requests).await.unwrap().into_inner();
        // Its answer shows how much memory the answers take.
        sender.send(request(1)).await.unwrap();
        answers.next().await.unwrap().unwrap();
        engine.run_gate().close();
        let closed = Closed(engine);
        let mut requests = numbered(100, 1);
        // Fails while the others wait.
        requests[1].model_name = "none".to_owned();
        for request in requests {
            sender.send(request).await.unwrap();
        }
        drop(sender);
        until(|| pauses(&served, "stream_requests_max") == 1).await;
        until(|| served.server.requests.admitted() == 63).await;
        drop(closed);
        for id in 0..100 {
            let answer = answers.next().await.unwrap().unwrap();
            assert_eq!(answer.infer_response.unwrap().id, id.to_string());
            assert_eq!(answer.error_message.is_empty(), id != 1, "{}", answer.error_message);
        }
        assert!(answers.next().await.is_none());
    });
}

/// Otherwise the time for a message ends while the server does not read it.
#[test]
fn a_stream_is_read_while_its_answers_are_unread() {
    let dir = tempfile::tempdir().unwrap();
    // A slow first answer must not let the stream pause.
    let (served, engine) = served(dir.path(), |config| config.listeners.request_timeout = LONG);
    run(async {
        let (sender, receiver) = mpsc::channel(64);
        let requests = ReceiverStream::new(receiver);
        let mut answers = client!(served).model_stream_infer(requests).await.unwrap().into_inner();
        // Its answer shows how much memory the answers take.
        sender.send(request(1)).await.unwrap();
        answers.next().await.unwrap().unwrap();
        // The answers to the first 40 are more than the window of the client and the channel hold.
        for (count, elements) in [(40, 50_000), (10, 1)] {
            engine.run_gate().close();
            let closed = Closed(engine.clone());
            for request in numbered(count, elements) {
                sender.send(request).await.unwrap();
            }
            until(|| served.server.requests.admitted() == count).await;
            drop(closed);
            until(|| served.server.requests.admitted() == 0).await;
        }
        drop(sender);
        for id in (0..40).chain(0..10) {
            let answer = answers.next().await.unwrap().unwrap();
            assert_eq!(answer.error_message, "");
            assert_eq!(answer.infer_response.unwrap().id, id.to_string());
        }
        assert!(answers.next().await.is_none());
    });
}

/// Sends 12 requests, of which `running` reach the limit `kind`. None is refused.
fn limited(
    kind: &'static str,
    running: usize,
    elements: usize,
    change: impl FnOnce(&mut ListenerConfig),
) {
    let dir = tempfile::tempdir().unwrap();
    let (served, engine) = served(dir.path(), |config| change(&mut config.listeners));
    engine.run_gate().close();
    let closed = Closed(engine);
    run(async {
        let requests = tokio_stream::iter(numbered(12, elements));
        let mut answers = client!(served).model_stream_infer(requests).await.unwrap().into_inner();
        until(|| pauses(&served, kind) == 1).await;
        assert_eq!(served.server.requests.admitted(), running);
        drop(closed);
        for _ in 0..12 {
            assert_eq!(answers.next().await.unwrap().unwrap().error_message, "");
        }
    });
}

#[test]
fn a_stream_begins_with_few_requests() {
    limited("stream_requests_max", 8, 1, |_| {});
}

#[test]
fn a_stream_leaves_half_of_the_permits() {
    limited("requests_max", 2, 1, |listeners| listeners.requests_max = 4);
}

/// Five messages of 400 kB are less than an eighth of the budget, and six are more.
#[test]
fn a_stream_takes_a_part_of_the_memory() {
    limited("request_memory", 5, 100_000, |listeners| {
        listeners.request_memory_bytes = Some(BUDGET);
    });
}

/// The deadline of a request begins when it is read.
#[test]
fn a_stream_with_slow_answers_is_read_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let (served, engine) = served(dir.path(), |config| config.listeners.request_timeout = SHORT);
    engine.run_gate().close();
    let closed = Closed(engine);
    run(async {
        let (sender, receiver) = mpsc::channel(4);
        let requests = ReceiverStream::new(receiver);
        let mut answers = client!(served).model_stream_infer(requests).await.unwrap().into_inner();
        sender.send(request(1)).await.unwrap();
        let late = answers.next().await.unwrap().unwrap();
        assert!(!late.error_message.is_empty(), "its deadline passes");
        sender.send(request(1)).await.unwrap();
        until(|| pauses(&served, "request_timeout") == 1).await;
        drop(closed);
    });
}

#[test]
fn a_stream_leaves_half_of_the_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (served, engine) = served(dir.path(), |_| {});
    let memory = &served.server.requests.memory;
    let others = memory.reserve(memory.max() / 2).unwrap();
    engine.run_gate().close();
    let closed = Closed(engine);
    run(async {
        let requests = tokio_stream::iter(numbered(3, 1));
        let mut answers = client!(served).model_stream_infer(requests).await.unwrap().into_inner();
        until(|| pauses(&served, "request_memory") == 1).await;
        assert_eq!(served.server.requests.admitted(), 1);
        drop(closed);
        for _ in 0..3 {
            assert_eq!(answers.next().await.unwrap().unwrap().error_message, "");
        }
    });
    drop(others);
}
