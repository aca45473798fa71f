package remoting

import "strconv"

// Request codes, named as RocketMQ names them. Which of them a server answers is up to its handler.
const (
	SendMessage                          int32 = 10
	PullMessage                          int32 = 11
	QueryMessage                         int32 = 12
	QueryConsumerOffset                  int32 = 14
	UpdateConsumerOffset                 int32 = 15
	UpdateAndCreateTopic                 int32 = 17
	UpdateAndCreateTopicList             int32 = 18
	GetAllTopicConfig                    int32 = 21
	UpdateBrokerConfig                   int32 = 25
	GetBrokerConfig                      int32 = 26
	GetBrokerRuntimeInfo                 int32 = 28
	SearchOffsetByTimestamp              int32 = 29
	GetMaxOffset                         int32 = 30
	GetMinOffset                         int32 = 31
	GetEarliestMsgStoreTime              int32 = 32
	ViewMessageByID                      int32 = 33
	HeartBeat                            int32 = 34
	UnregisterClient                     int32 = 35
	ConsumerSendMsgBack                  int32 = 36
	EndTransaction                       int32 = 37
	GetConsumerListByGroup               int32 = 38
	CheckTransactionState                int32 = 39
	NotifyConsumerIDsChanged             int32 = 40
	LockBatchMQ                          int32 = 41
	UnlockBatchMQ                        int32 = 42
	GetAllConsumerOffset                 int32 = 43
	CheckClientConfig                    int32 = 46
	GetTimerMetrics                      int32 = 61
	PutKVConfig                          int32 = 100
	GetKVConfig                          int32 = 101
	DeleteKVConfig                       int32 = 102
	RegisterBroker                       int32 = 103
	UnregisterBroker                     int32 = 104
	GetRouteInfoByTopic                  int32 = 105
	GetBrokerClusterInfo                 int32 = 106
	UpdateAndCreateSubscriptionGroup     int32 = 200
	GetAllSubscriptionGroupConfig        int32 = 201
	GetTopicStatsInfo                    int32 = 202
	GetConsumerConnectionList            int32 = 203
	GetProducerConnectionList            int32 = 204
	WipeWritePermOfBroker                int32 = 205
	GetAllTopicListFromNameserver        int32 = 206
	DeleteSubscriptionGroup              int32 = 207
	GetConsumeStats                      int32 = 208
	DeleteTopicInBroker                  int32 = 215
	DeleteTopicInNamesrv                 int32 = 216
	RegisterTopicInNamesrv               int32 = 217
	GetKVListByNamespace                 int32 = 219
	ResetConsumerClientOffset            int32 = 220
	GetConsumerStatusFromClient          int32 = 221
	InvokeBrokerToResetOffset            int32 = 222
	InvokeBrokerToGetConsumerStatus      int32 = 223
	GetTopicsByCluster                   int32 = 224
	UpdateAndCreateSubscriptionGroupList int32 = 225
	QueryTopicConsumeByWho               int32 = 300
	QueryConsumeTimeSpan                 int32 = 303
	GetSystemTopicListFromNamesrv        int32 = 304
	GetSystemTopicListFromBroker         int32 = 305
	CleanExpiredConsumeQueue             int32 = 306
	GetConsumerRunningInfo               int32 = 307
	ConsumeMessageDirectly               int32 = 309
	SendMessageV2                        int32 = 310
	GetUnitTopicList                     int32 = 311
	GetHasUnitSubTopicList               int32 = 312
	GetHasUnitSubUnunitTopicList         int32 = 313
	CloneGroupOffset                     int32 = 314
	ViewBrokerStatsData                  int32 = 315
	CleanUnusedTopic                     int32 = 316
	GetBrokerConsumeStats                int32 = 317
	UpdateNamesrvConfig                  int32 = 318
	GetNamesrvConfig                     int32 = 319
	SendBatchMessage                     int32 = 320
	QueryConsumeQueue                    int32 = 321
	QueryDataVersion                     int32 = 322
	ResumeCheckHalfMessage               int32 = 323
	SendReplyMessage                     int32 = 324
	SendReplyMessageV2                   int32 = 325
	PushReplyMessageToClient             int32 = 326
	AddWritePermOfBroker                 int32 = 327
	GetAllProducerInfo                   int32 = 328
	DeleteExpiredCommitLog               int32 = 329
	QueryTopicsByConsumer                int32 = 343
	QuerySubscriptionByConsumer          int32 = 345
	GetTopicConfig                       int32 = 351
	GetSubscriptionGroupConfig           int32 = 352
	UpdateAndGetGroupForbidden           int32 = 353
	LitePullMessage                      int32 = 361
	RecallMessage                        int32 = 370
	QueryAssignment                      int32 = 400
	SetMessageRequestMode                int32 = 401
	GetBrokerMemberGroup                 int32 = 901
	BrokerHeartbeat                      int32 = 904
	NotifyMinBrokerIDChange              int32 = 905
	GetBrokerHAStatus                    int32 = 907
	ControllerElectMaster                int32 = 1002
	ControllerGetReplicaInfo             int32 = 1004
	ControllerGetMetadataInfo            int32 = 1005
	ControllerGetSyncStateData           int32 = 1006
	GetBrokerEpochCache                  int32 = 1007
	GetControllerConfig                  int32 = 1010
	PopMessage                           int32 = 200050
	AckMessage                           int32 = 200051
	PeekMessage                          int32 = 200052
	ChangeMessageInvisibleTime           int32 = 200053
	Notification                         int32 = 200054
	BatchAckMessage                      int32 = 200151

	// GetControllers is our own: a name server answers with the fields clusterID and controllers.
	GetControllers int32 = 31001
	// ListTransactions and ResolveTransaction are our own: what transactions are pending, and an operator's end of one.
	ListTransactions   int32 = 31020
	ResolveTransaction int32 = 31021
	// ShowTimers is our own: which delayed messages wait, in figures.
	ShowTimers int32 = 31022
	// ResendDeadLetter is our own: a dead letter goes to its group again, once.
	ResendDeadLetter int32 = 31023
	// FreezeGroup is our own: a broker group that is write-protected and drained takes no message any more, and is removed.
	FreezeGroup int32 = 31024
)

// Response codes. They stay below 32768, so that both codecs carry them.
const (
	Success                    int32 = 0
	SystemError                int32 = 1
	SystemBusy                 int32 = 2
	RequestCodeNotSupported    int32 = 3
	TransactionFailed          int32 = 4
	FlushDiskTimeout           int32 = 10
	SlaveNotAvailable          int32 = 11
	FlushSlaveTimeout          int32 = 12
	MessageIllegal             int32 = 13
	ServiceNotAvailable        int32 = 14
	VersionNotSupported        int32 = 15
	NoPermission               int32 = 16
	TopicNotExist              int32 = 17
	TopicExistAlready          int32 = 18
	PullNotFound               int32 = 19
	PullRetryImmediately       int32 = 20
	PullOffsetMoved            int32 = 21
	QueryNotFound              int32 = 22
	SubscriptionParseFailed    int32 = 23
	SubscriptionNotExist       int32 = 24
	SubscriptionNotLatest      int32 = 25
	SubscriptionGroupNotExist  int32 = 26
	FilterDataNotExist         int32 = 27
	FilterDataNotLatest        int32 = 28
	InvalidParameter           int32 = 29
	ConsumerNotOnline          int32 = 206
	ConsumeMsgTimeout          int32 = 207
	NoMessage                  int32 = 208
	PollingFull                int32 = 209
	PollingTimeout             int32 = 210
	BrokerNotExist             int32 = 211
	BrokerDispatchNotCompleted int32 = 212
	BroadcastConsumption       int32 = 213
	FlowControl                int32 = 215
	IllegalOperation           int32 = 604
	GoAway                     int32 = 1500
)

// Remarks of SYSTEM_BUSY answers begin with this, so that stock clients know an overload.
const busyRemark = "[REJECTREQUEST]"

var requestNames = map[int32]string{
	SendMessage: "SEND_MESSAGE", PullMessage: "PULL_MESSAGE", QueryMessage: "QUERY_MESSAGE",
	QueryConsumerOffset: "QUERY_CONSUMER_OFFSET", UpdateConsumerOffset: "UPDATE_CONSUMER_OFFSET",
	UpdateAndCreateTopic: "UPDATE_AND_CREATE_TOPIC", GetBrokerRuntimeInfo: "GET_BROKER_RUNTIME_INFO",
	SearchOffsetByTimestamp: "SEARCH_OFFSET_BY_TIMESTAMP", GetMaxOffset: "GET_MAX_OFFSET", GetMinOffset: "GET_MIN_OFFSET",
	GetEarliestMsgStoreTime: "GET_EARLIEST_MSG_STORETIME", ViewMessageByID: "VIEW_MESSAGE_BY_ID", HeartBeat: "HEART_BEAT",
	UnregisterClient: "UNREGISTER_CLIENT", ConsumerSendMsgBack: "CONSUMER_SEND_MSG_BACK", EndTransaction: "END_TRANSACTION", CheckTransactionState: "CHECK_TRANSACTION_STATE",
	GetConsumerListByGroup: "GET_CONSUMER_LIST_BY_GROUP", NotifyConsumerIDsChanged: "NOTIFY_CONSUMER_IDS_CHANGED",
	LockBatchMQ: "LOCK_BATCH_MQ", UnlockBatchMQ: "UNLOCK_BATCH_MQ", CheckClientConfig: "CHECK_CLIENT_CONFIG",
	RegisterBroker: "REGISTER_BROKER", UnregisterBroker: "UNREGISTER_BROKER", GetRouteInfoByTopic: "GET_ROUTEINFO_BY_TOPIC",
	GetBrokerClusterInfo: "GET_BROKER_CLUSTER_INFO", UpdateAndCreateSubscriptionGroup: "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP",
	GetAllTopicListFromNameserver: "GET_ALL_TOPIC_LIST_FROM_NAMESERVER", DeleteTopicInBroker: "DELETE_TOPIC_IN_BROKER",
	DeleteTopicInNamesrv: "DELETE_TOPIC_IN_NAMESRV", SendMessageV2: "SEND_MESSAGE_V2", SendBatchMessage: "SEND_BATCH_MESSAGE",
	QueryDataVersion: "QUERY_DATA_VERSION", LitePullMessage: "LITE_PULL_MESSAGE", BrokerHeartbeat: "BROKER_HEARTBEAT",
	GetControllers: "GET_CONTROLLERS", ListTransactions: "LIST_TRANSACTIONS", ResolveTransaction: "RESOLVE_TRANSACTION", ShowTimers: "SHOW_TIMERS", ResendDeadLetter: "RESEND_DEAD_LETTER", FreezeGroup: "FREEZE_GROUP",
	ResumeCheckHalfMessage: "RESUME_CHECK_HALF_MESSAGE", GetAllSubscriptionGroupConfig: "GET_ALL_SUBSCRIPTIONGROUP_CONFIG",
	GetConsumerConnectionList: "GET_CONSUMER_CONNECTION_LIST", GetProducerConnectionList: "GET_PRODUCER_CONNECTION_LIST",
	GetConsumeStats: "GET_CONSUME_STATS", ResetConsumerClientOffset: "RESET_CONSUMER_CLIENT_OFFSET",
	GetConsumerStatusFromClient: "GET_CONSUMER_STATUS_FROM_CLIENT", InvokeBrokerToResetOffset: "INVOKE_BROKER_TO_RESET_OFFSET",
	InvokeBrokerToGetConsumerStatus: "INVOKE_BROKER_TO_GET_CONSUMER_STATUS", GetConsumerRunningInfo: "GET_CONSUMER_RUNNING_INFO",
	ConsumeMessageDirectly: "CONSUME_MESSAGE_DIRECTLY", CloneGroupOffset: "CLONE_GROUP_OFFSET",
}

// RequestName returns RocketMQ's name of a request code, or its number when this package has no name for it. For metrics
// use it only with codes that a handler knows: a stranger can send any number.
func RequestName(code int32) string {
	if n, ok := requestNames[code]; ok {
		return n
	}
	return strconv.Itoa(int(code))
}
