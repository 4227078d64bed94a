BEGIN TRANSACTION;
CREATE TABLE answers (hash INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
INSERT INTO "answers" VALUES(5976513026947784784,2);
CREATE TABLE events (
  seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,1.79613012593489670748e+09,'plan','','{"command":"run","files":{"prompts/step.md":{"$text":1}}}');
INSERT INTO "events" VALUES(2,1.79613012593541836736e+09,'step','run/agent/t/0','{"attempt":0,"turn":{"observation":{"$text":1},"action":"go","situation":"s","retrieved":["i"],"calls":[{"prompt":{"$text":1},"output":"go","digest":"m:1","usage":{"prompt_tokens":3,"dollars":0.5,"seconds":0.25}},{"messages":{"$chain":3},"tools":{"$chain":4},"output":"","digest":"m:2#1","tool_calls":[{"id":"1","name":"act","arguments":"{\"action\": \"go\"}"}],"usage":{"prompt_tokens":3,"dollars":0.5,"seconds":0.25}}],"reward":1.0}}');
INSERT INTO "events" VALUES(3,1.79613012593564844131e+09,'step','run/agent/t/0','{"attempt":0,"turn":{"observation":{"$text":1},"action":"go","situation":"s","retrieved":["i"],"calls":[{"prompt":{"$text":1},"output":"go","digest":"m:1","usage":{"prompt_tokens":3,"dollars":0.5,"seconds":0.25}},{"messages":{"$chain":3},"tools":{"$chain":4},"output":"","digest":"m:2#1","tool_calls":[{"id":"1","name":"act","arguments":"{\"action\": \"go\"}"}],"usage":{"prompt_tokens":3,"dollars":0.5,"seconds":0.25}}],"reward":1.0}}');
INSERT INTO "events" VALUES(4,1.79613012593594646455e+09,'episode','run/agent/t/0','{"id":"run/agent/t/0","task":"t","split":"valid","goal":"g","episode":0,"seed":1,"harness":"h","model":"m","unfinished":[],"lost":{"calls":0,"usage":{"prompt_tokens":0,"cached_tokens":0,"output_tokens":0,"dollars":0.0,"seconds":0.0}},"final":"end","score":1.0,"status":"done","fault":"","reason":"","arm":"agent","started":5.0,"seconds":2.5,"attempt":0}');
INSERT INTO "events" VALUES(5,1.79613012593607306475e+09,'outcome','','{"mean":0.5}');
CREATE TABLE finished (seq INTEGER PRIMARY KEY, row TEXT NOT NULL, recalled TEXT);
INSERT INTO "finished" VALUES(4,'["run/agent/t/0","t","valid","g",0,"h","m","done",1.0,"","","agent",5.0,2.5,2,4,0,12,0,12,2.0,2.0,0,2858,[]]','["i","i"]');
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('format','2');
CREATE TABLE names (hash INTEGER PRIMARY KEY, id INTEGER NOT NULL);
CREATE TABLE pieces (id INTEGER PRIMARY KEY, data NOT NULL);
INSERT INTO "pieces" VALUES(1,X'785E4B54C8C9CF4B572849AD28D151F8307F59B742625E8AC2DB050D0A89A33223280C0069DED729');
INSERT INTO "pieces" VALUES(2,'["",{"role":"system","content":{"$text":1}}]');
INSERT INTO "pieces" VALUES(3,'[2,{"role":"assistant","content":"","tool_calls":[{"id":"1","name":"act","arguments":"{\"action\": \"go\"}"}]},{"role":"tool","content":"gone","tool_call_id":"1"}]');
INSERT INTO "pieces" VALUES(4,'["",{"type":"function","function":{"name":"act","description":{"$text":1},"parameters":{}}}]');
CREATE INDEX events_by_kind ON events (kind, key);
CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER events_last BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER events_once BEFORE INSERT ON events WHEN EXISTS (SELECT 1 FROM events WHERE seq = NEW.seq)
  BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER pieces_stay BEFORE UPDATE ON pieces BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER pieces_last BEFORE DELETE ON pieces BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER pieces_once BEFORE INSERT ON pieces WHEN EXISTS (SELECT 1 FROM pieces WHERE id = NEW.id)
  BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER finished_stay BEFORE UPDATE ON finished BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER finished_last BEFORE DELETE ON finished BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
COMMIT;
