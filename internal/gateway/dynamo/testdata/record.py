import json,urllib.request,sys
base=sys.argv[1]
W={"model_name":"m","routing_group":"default","block_size":16,"data_parallel_start_rank":0,"data_parallel_size":1,"total_kv_blocks":1000,"max_num_batched_tokens":8192}
def w(i): return dict(W,worker_id=i,endpoint=f"http://w{i}:8000",kv_events_endpoints={"0":f"tcp://127.0.0.1:1599{i}"})
T=list(range(1,41))
steps=[
("GET","/health",None),("GET","/ready",None),
("POST","/select",{"model_name":"m","token_ids":T}),
("POST","/workers",w(1)),("POST","/workers",w(2)),("GET","/workers?model_name=m",None),("GET","/ready",None),
("POST","/select",{"selection_id":"s1","model_name":"m","block_hashes":[11,-12],"sequence_hashes":[21,22],"isl_tokens":40,"session_id":"x","allowed_worker_ids":[2]}),
("POST","/reservations",{"selection_id":"s1","model_name":"m"}),
("POST","/reservations",{"selection_id":"s1","model_name":"m"}),
("GET","/loads?model_name=m",None),
("POST","/select_and_reserve",{"selection_id":"s1","model_name":"m","token_ids":T}),
("POST","/reservations/s1/prefill_complete",None),
("POST","/reservations/s1/output_block",{}),
("DELETE","/reservations/s1",None),("DELETE","/reservations/s1",None),
("POST","/reservations/s1/prefill_complete",None),
("POST","/select_and_reserve",{"selection_id":"s2","model_name":"m","block_hashes":[11,12],"sequence_hashes":[21,22],"isl_tokens":40,"pinned_worker":{"worker_id":1,"dp_rank":0}}),
("DELETE","/reservations/s2",None),
("POST","/reservations",{"selection_id":"e1","model_name":"m","worker_id":2,"dp_rank":0,"token_ids":T}),
("DELETE","/reservations/e1",None),
("POST","/reservations",{"model_name":"m"}),
("POST","/select",{"model_name":"m"}),
("POST","/select",{"model_name":"m","block_hashes":[1]}),
("POST","/select",{"model_name":"m","block_hashes":[1],"sequence_hashes":[1]}),
("POST","/select",{"model_name":"m","block_hashes":[1],"sequence_hashes":[],"isl_tokens":16}),
("POST","/select",{"model_name":"m","token_ids":T,"allowed_worker_ids":[7]}),
("POST","/select",{"model_name":"m","token_ids":T,"pinned_worker":{"worker_id":7,"dp_rank":0}}),
("POST","/select",{"model_name":"other","token_ids":T}),
("PATCH","/workers/2",{"endpoint":"http://moved:8000","total_kv_blocks":2000}),
("PATCH","/workers/2",{"data_parallel_size":2,"kv_events_endpoints":{"0":"tcp://127.0.0.1:15992","1":"tcp://127.0.0.1:15993"}}),
("PATCH","/workers/2",{}),
("PATCH","/workers/9",{"endpoint":"http://moved:8000"}),
("PATCH","/workers/2",{"block_size":"x"}),
("GET","/workers",None),
("POST","/potential_loads",{"model_name":"m","token_ids":T}),
("POST","/potential_loads",{"model_name":"m","block_hashes":[11,12],"sequence_hashes":[21,22],"isl_tokens":40}),
("POST","/potential_loads",{"model_name":"other","token_ids":T}),
("POST","/potential_loads",{"model_name":"m"}),
("POST","/overlap_scores",{"model_name":"m","token_ids":T}),
("POST","/overlap_scores",{"model_name":"m","block_hashes":[11,12],"sequence_hashes":[21,22],"isl_tokens":40}),
("POST","/overlap_scores",{"model_name":"other","token_ids":T}),
("POST","/overlap_scores",{"model_name":"m"}),
("DELETE","/workers/1",None),("DELETE","/workers/2",None),("DELETE","/workers/2",None),
]
for verb,path,body in steps:
    req=urllib.request.Request(base+path,method=verb,data=None if body is None else json.dumps(body).encode(),headers={"Content-Type":"application/json"})
    try: r=urllib.request.urlopen(req,timeout=10); code=r.status
    except urllib.error.HTTPError as e: r=e; code=e.code
    text=r.read().decode()
    try: ans=json.loads(text)
    except ValueError: ans=text
    print(json.dumps({"verb":verb,"path":path,"body":body,"status":code,"answer":ans}))
