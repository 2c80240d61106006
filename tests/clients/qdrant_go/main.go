// Uses a collection as a user of Qdrant's Go client does. Arguments: host, port of gRPC.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/qdrant/go-client/qdrant"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	port, err := strconv.Atoi(os.Args[2])
	check(err)
	client, err := qdrant.NewClient(&qdrant.Config{Host: os.Args[1], Port: port})
	check(err)
	defer client.Close()
	ctx := context.Background()
	check(client.CreateCollection(ctx, &qdrant.CreateCollection{
		CollectionName: "go",
		VectorsConfig:  qdrant.NewVectorsConfig(&qdrant.VectorParams{Size: 2, Distance: qdrant.Distance_Dot}),
	}))
	wait := true
	_, err = client.Upsert(ctx, &qdrant.UpsertPoints{CollectionName: "go", Wait: &wait, Points: []*qdrant.PointStruct{
		{Id: qdrant.NewIDNum(1), Vectors: qdrant.NewVectors(1, 0), Payload: qdrant.NewValueMap(map[string]any{"city": "Ulm", "n": 1})},
		{Id: qdrant.NewIDNum(2), Vectors: qdrant.NewVectors(0, 1), Payload: qdrant.NewValueMap(map[string]any{"city": "Bern"})},
	}})
	check(err)
	hits, err := client.Query(ctx, &qdrant.QueryPoints{
		CollectionName: "go",
		Query:          qdrant.NewQuery(1, 0.5),
		Filter:         &qdrant.Filter{Must: []*qdrant.Condition{qdrant.NewMatch("city", "Ulm")}},
		WithPayload:    qdrant.NewWithPayload(true),
	})
	check(err)
	for _, hit := range hits {
		fmt.Println(hit.Id.GetNum(), hit.Score, hit.Payload["city"].GetStringValue(), hit.Payload["n"].GetIntegerValue())
	}
	count, err := client.Count(ctx, &qdrant.CountPoints{CollectionName: "go"})
	check(err)
	names, err := client.ListCollections(ctx)
	check(err)
	info, err := client.GetCollectionInfo(ctx, "go")
	check(err)
	fmt.Println(count, names, info.GetStatus(), info.GetConfig().GetParams().GetVectorsConfig().GetParams().GetSize())
	_, err = client.Query(ctx, &qdrant.QueryPoints{CollectionName: "nowhere", Query: qdrant.NewQuery(1)})
	fmt.Println(err)
	check(client.DeleteCollection(ctx, "go"))
}
